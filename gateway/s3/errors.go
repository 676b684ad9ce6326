package s3

import (
	"encoding/json"
	"errors"
	"net/http"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/versity/versitygw/s3err"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/gateway/s3/s3error"
)

// SQLSTATEs of the schema objects; the migration says what they mean.
const (
	stateNoBucket       = "ZO001"
	statePrecondition   = "ZO002"
	stateNoKey          = "ZO003"
	stateGivenUp        = "ZO004"
	stateBucketNotEmpty = "ZO005"
	stateOtherRequest   = "ZO006"
	stateRuleInUse      = "ZO007"
	stateNoUpload       = "ZO008"
	stateNoVersion      = "ZO009"

	stateNotText      = "22021" // character_not_in_repertoire
	stateUntranslated = "22P05" // untranslatable_character, a NUL in JSON
)

// ErrRuleInUse: the bucket holds objects that were written under another rule.
var ErrRuleInUse = errors.New("the bucket's rule can't change while it holds objects")

// ErrNoBucket: there is no such bucket.
var ErrNoBucket = errors.New("no such bucket")

// translate turns PostgreSQL's refusals into errors that say what they mean;
// other errors stay as they are.
func translate(err error) error {
	pgErr, ok := errors.AsType[*pgconn.PgError](err)
	if !ok {
		return err
	}
	switch pgErr.Code {
	case statePrecondition:
		return s3err.GetPreconditionFailedErr(s3err.Condition(pgErr.Detail))
	case stateNoKey:
		return s3err.GetAPIError(s3err.ErrNoSuchKey)
	case stateBucketNotEmpty:
		return s3err.GetAPIError(s3err.ErrBucketNotEmpty)
	case stateNoBucket:
		return errNoBucket
	case stateGivenUp:
		return errGivenUp
	case stateOtherRequest:
		return s3error.Error{
			Code: "InvalidRequest", Status: http.StatusBadRequest,
			Message: "This amz-sdk-invocation-id was used for another request on the same key. Nothing was changed.",
		}
	case stateNoVersion:
		return s3err.GetAPIError(s3err.ErrNoSuchVersion)
	case stateNoUpload:
		return s3err.GetAPIError(s3err.ErrNoSuchUpload)
	case stateNotText, stateUntranslated:
		return s3error.InvalidText("request")
	case stateRuleInUse:
		return ErrRuleInUse
	}
	return fenceError(pgErr)
}

// fenceError reads the facts of a refusal by the fence from an error's DETAIL.
func fenceError(pgErr *pgconn.PgError) error {
	var d struct {
		Resource, Needed    string
		Presented, Recorded json.Number
	}
	_ = json.Unmarshal([]byte(pgErr.Detail), &d) // facts that are missing stay empty
	token := func(n json.Number) fence.Token { i, _ := n.Int64(); return fence.Token(i) }
	switch pgErr.Code {
	case "ZF001":
		return &fence.StaleError{Resource: d.Resource, Presented: token(d.Presented), Recorded: token(d.Recorded)}
	case "ZF002":
		return &fence.NoGrantError{Needed: d.Needed}
	case "ZF003":
		return &fence.NeverIssuedError{Resource: d.Resource, Presented: token(d.Presented), Recorded: token(d.Recorded)}
	case "ZF004":
		return &fence.WrongResourceError{Resource: d.Resource, Needed: d.Needed}
	case "ZF005":
		return &fence.UndrainedError{Resource: d.Resource, Token: token(d.Recorded), Detail: pgErr.Message}
	}
	return pgErr
}

var (
	errNoBucket = ErrNoBucket
	errGivenUp  = s3error.Error{
		Code: "RequestTimeout", Status: http.StatusBadRequest,
		Message: "The upload took so long that it was given up. Nothing was stored. Upload again.",
	}
)
