package s3

import (
	"net/http"

	"github.com/fencegate/fencegate/gateway/access"
	"github.com/fencegate/fencegate/gateway/s3/credentials"
	"github.com/fencegate/fencegate/gateway/s3/s3error"
)

// Rights say what a principal may do now.
type Rights interface {
	May(principal string, v access.Verb, resource string) bool
}

// errNoRight refuses what the principal of the credentials may not do, or not any more.
var errNoRight = s3error.Error{
	Code: "AccessDenied", Status: http.StatusForbidden,
	Message: "The principal of these credentials has no right to this at the gateway. Nothing was changed.",
}

// permitted reports whether who signed the request may still do so: a lease's credentials are
// worth what their principal may acquire. The port's own key is a principal by its name.
func (c config) permitted(r request, s credentials.Session, leased bool) bool {
	switch {
	case c.Rights == nil:
		return true
	case leased:
		return c.Rights.May(s.Principal, access.Acquire, s.Resource)
	case !r.root:
		return true // nobody signed it: it is refused elsewhere
	}
	verb := access.Buckets
	if method := string(r.http.Method()); method == http.MethodGet || method == http.MethodHead {
		verb = access.S3Read
	}
	return c.Rights.May(access.S3Prefix+c.RootAccessKey, verb, "")
}

// readsAll reports whether credentials that are not limited to their resource read the rest now.
func (c config) readsAll(s credentials.Session) bool {
	return c.Rights == nil || c.Rights.May(s.Principal, access.S3Read, "")
}
