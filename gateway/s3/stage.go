package s3

import (
	"net/http"

	"github.com/versity/versitygw/s3err"

	"github.com/fencegate/fencegate/gateway/blob"
	"github.com/fencegate/fencegate/gateway/objects"
	"github.com/fencegate/fencegate/gateway/s3/edge"
	"github.com/fencegate/fencegate/gateway/s3/s3error"
)

// An upload that is staged is stored and hashed as any other, and then recorded
// instead of committed: nobody sees it until a transaction publishes it, in
// PostgreSQL and under the same grant, together with rows.

// stages reports whether the request asks for its upload to be staged.
func (r request) stages() bool { return r.http != nil && r.header(edge.HeaderStage) != "" }

// checkStage refuses the header where it would be ignored, or could have been
// added or taken away on the way.
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
