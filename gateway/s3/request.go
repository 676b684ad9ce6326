package s3

import (
	"context"
	"net/http"
	"strings"
	"time"

	"github.com/valyala/fasthttp"
	"github.com/versity/versitygw/auth"
	"github.com/versity/versitygw/s3api/utils"
	"github.com/versity/versitygw/s3err"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/gateway/blob"
	"github.com/fencegate/fencegate/gateway/objects"
	"github.com/fencegate/fencegate/gateway/s3/credentials"
	"github.com/fencegate/fencegate/gateway/s3/edge"
	"github.com/fencegate/fencegate/gateway/s3/s3error"
)

// request is what the backend needs of a request besides its arguments.
type request struct {
	http       *fasthttp.RequestCtx
	root       bool
	grant      objects.Proof
	leased     bool   // a lease's credentials signed the request
	expired    *lapse // those have expired: only what was done before is answered
	terms      credentials.Terms
	invocation string // "" if there is none
}

// requestOf reads the context that versitygw passes on, which is the HTTP request itself. It copies what it keeps,
// because the buffer does not outlive the request.
func (b *backend) requestOf(ctx context.Context) request {
	rc, ok := ctx.(*fasthttp.RequestCtx)
	if !ok {
		return request{}
	}
	r := request{http: rc}
	if s, leased := b.sessionOf(rc); leased {
		r.grant, r.leased, r.terms = objects.Proof{Resource: s.Resource, Token: s.Token}, true, s.Terms
		if !time.Now().Before(s.Expires) {
			r.expired = new(lapse)
		}
	} else {
		account := accountOf(rc)
		r.root = !account.IsSession && account.Access != "" && account.Access == b.cfg.RootAccessKey
	}
	// The id need not be signed: botocore does not sign it. An id added on the way can make a write fail, or repeat its
	// earlier answer; it admits no write.
	if id := r.header(edge.HeaderInvocation); len(id) <= maxInvocation {
		r.invocation = id
	}
	return r
}

func accountOf(rc *fasthttp.RequestCtx) auth.Account {
	account, _ := rc.UserValue(string(utils.ContextKeyAccount)).(auth.Account)
	return account
}

// sessionOf returns the session of a lease's credentials, which versitygw has authenticated through iam.
func (b *backend) sessionOf(rc *fasthttp.RequestCtx) (credentials.Session, bool) {
	account := accountOf(rc)
	if !account.IsSession {
		return credentials.Session{}, false
	}
	s, err := b.cfg.Keys.Open(account.SessionToken)
	return s, err == nil
}

const maxInvocation = 128 // bytes of its id

// id returns the answer's x-amz-request-id; "" if there is no HTTP request.
func (r request) id() string {
	if r.http == nil {
		return ""
	}
	id, _ := r.http.UserValue(string(utils.ContextKeyRequestID)).(string)
	return strings.Clone(id)
}

func (r request) header(name string) string { return string(r.http.Request.Header.Peek(name)) }

func (r request) query(name string) string { return string(r.http.QueryArgs().Peek(name)) }

// signed reports whether the request's signature covers the header. versitygw enforces that for X-Amz-* and Host; other
// headers may have been added on the way. The list is the one that versitygw itself checked: a request with any
// parameter of a presigned URL counts as presigned, even with an Authorization header.
func (r request) signed(header string) bool {
	list := r.query("X-Amz-SignedHeaders")
	if !r.presigned() {
		list = signedHeaders(r.header("Authorization"))
	}
	for name := range strings.SplitSeq(list, ";") {
		if strings.EqualFold(strings.TrimSpace(name), header) {
			return true
		}
	}
	return false
}

func (r request) presigned() bool {
	for _, name := range []string{
		"X-Amz-Algorithm", "X-Amz-Credential", "X-Amz-Date", "X-Amz-Signature", "X-Amz-SignedHeaders", "X-Amz-Expires", "X-Amz-Security-Token",
		"Expires", "AWSAccessKeyId", "Signature",
	} {
		if r.query(name) != "" {
			return true
		}
	}
	return false
}

// signedHeaders returns the list in an Authorization header, which has exactly the form "AWS4-HMAC-SHA256 Credential=…,
// SignedHeaders=…, Signature=…".
func signedHeaders(authorization string) string {
	rest, isV4 := strings.CutPrefix(authorization, "AWS4-HMAC-SHA256 ")
	parts := strings.Split(rest, ",")
	if !isV4 || len(parts) != 3 {
		return ""
	}
	list, found := strings.CutPrefix(strings.TrimSpace(parts[1]), "SignedHeaders=")
	if !found || !strings.HasPrefix(strings.TrimSpace(parts[0]), "Credential=") || !strings.HasPrefix(strings.TrimSpace(parts[2]), "Signature=") {
		return ""
	}
	return list
}

// needGrant refuses a write that neither a lease's credentials nor a Fencing-Token header authorizes. The header's
// grant is for the resource that the key needs; the fence authenticates it by its seal.
func (b *backend) needGrant(r *request, bucket, key string) error {
	if r.stages() {
		if err := r.checkStage(); err != nil {
			return err
		}
	}
	if r.terms.Has(credentials.ReadOnly) {
		return errReadOnly
	}
	if r.expired != nil {
		return b.onlyRepeat(r, bucket, key)
	}
	presented := ""
	if r.http != nil {
		presented = r.header(edge.HeaderToken)
	}
	if r.terms.Has(credentials.WhileHeld) {
		if _, err := b.held.check(b.base, r.grant); err != nil {
			return err
		}
	}
	if presented == "" && r.grant.Token > 0 {
		return nil
	}
	rule, err := b.catalog.RuleOf(b.base, bucket, key)
	if err != nil {
		return err
	}
	needed := rule.Resource(bucket, key)
	switch {
	case presented == "" && rule.Unchecked() && r.root:
		return nil
	case presented != "" && rule.Unchecked():
		return edge.InvalidToken("is presented where nothing checks it: the rule of this key is none; leave it out")
	case presented == "":
		return &fence.NoGrantError{Needed: needed}
	case r.leased:
		return edge.InvalidToken("is presented beside a lease's credentials; one of the two must go")
	case !r.root, !r.signed(edge.HeaderToken):
		return edge.InvalidToken("is not among the signed headers")
	}
	g, err := fence.ParseGrant(needed, presented)
	if err != nil {
		return edge.InvalidToken("is malformed: " + err.Error()) // the error repeats no part of it
	}
	switch monotone := rule.IsMonotone(); {
	case monotone && !g.Seal.IsZero():
		return edge.InvalidToken("has a seal; the rule of this key is monotone, which takes a bare TOKEN")
	case monotone:
		r.grant = objects.Proof{Resource: needed, Token: g.Token, SealHash: []byte{}} // no seal, which differs from not presented
		return nil
	case g.Seal.IsZero():
		return edge.InvalidToken("has no seal; it reads TOKEN.SEAL")
	}
	r.grant = objects.Proof{Resource: needed, Token: g.Token, SealHash: g.Seal.Hash()}
	return nil
}

// change returns the change that the request makes, with its proof.
func (r request) change(bucket, key string, cond objects.Conditions) objects.Change {
	return objects.Change{Bucket: bucket, Key: key, Proof: r.grant, Invocation: r.invocation, Conditions: cond}
}

// Response headers of a refusal by the fence.
const (
	headerCode     = "Fencing-Code"
	headerRecorded = "Fencing-Recorded"
	headerResource = "Fencing-Resource" // percent-encoded
)

// refuse sets the response headers of a refusal by the fence.
func (r request) refuse(facts *s3error.Fencing) {
	if r.http == nil || facts == nil {
		return
	}
	h := &r.http.Response.Header
	h.Set(headerCode, facts.Code)
	if facts.Recorded > 0 {
		h.Set(headerRecorded, facts.Recorded.String())
	}
	if facts.Resource != "" {
		h.Set(headerResource, fence.EscapeResource(facts.Resource))
	}
}

// stages reports whether the request asks for its upload to be staged.
func (r request) stages() bool { return r.http != nil && r.header(edge.HeaderStage) != "" }

// checkStage refuses the header if it would be ignored, or could have been added or removed on the way.
func (r request) checkStage() error {
	query := r.http.QueryArgs()
	upload := r.http.IsPut() && !query.Has("tagging") || r.http.IsPost() && (query.Has("uploads") || query.Has("uploadId"))
	switch {
	case !upload:
		return s3err.GetNotImplementedErr(edge.HeaderStage, "")
	case r.header(edge.HeaderStage) != "true":
		return s3error.Error{Code: "InvalidArgument", Status: http.StatusBadRequest, Message: "The header " + edge.HeaderStage + " is not true. Nothing was changed."}
	case !r.signed(edge.HeaderStage):
		return s3error.Error{Code: "InvalidRequest", Status: http.StatusForbidden, Message: "The header " + edge.HeaderStage + " is not among the signed headers. Nothing was changed."}
	}
	return nil
}

// tellStage names the stage in the answer.
func (r request) tellStage(v objects.Stored) {
	r.http.Response.Header.Set(edge.HeaderStage, blob.ID(v.ID).String())
}

// addressed is a request and what it names; key is "" for a bucket.
type addressed struct {
	request

	bucket, key string
}
