package s3

import (
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"time"

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

// right is one that a request needs of a principal.
type right struct {
	principal string
	verb      access.Verb
	resource  string
}

// needed is what who signed the request needs to do so still: a lease's credentials are worth
// what their principal may acquire. The port's own key is a principal by its name. Nothing is
// needed where nobody signed: that is refused elsewhere.
func (c config) needed(r request, s credentials.Session, leased bool) (n right, asked bool) {
	switch {
	case c.Rights == nil || !leased && !r.root:
		return right{}, false
	case leased:
		return right{s.Principal, access.Acquire, s.Resource}, true
	}
	n = right{access.S3Prefix + c.RootAccessKey, access.Buckets, ""}
	if method := string(r.http.Method()); method == http.MethodGet || method == http.MethodHead {
		n.verb = access.S3Read
	}
	return n, true
}

// permitted reports whether the request may be made, and says in the log where not.
func (b *backend) permitted(r request, s credentials.Session, leased bool, action string) bool {
	n, asked := b.cfg.needed(r, s, leased)
	if !asked || b.cfg.Rights.May(n.principal, n.verb, n.resource) {
		return true
	}
	b.tellDenied(r, n, action)
	return false
}

// tellDenied writes the line of the audit, of each principal one in a while.
func (b *backend) tellDenied(r request, n right, action string) {
	suppressed, due := b.denials.due(n.principal, time.Now())
	if !due {
		return
	}
	b.cfg.Logger.Info("a request was denied", "verb", n.verb, "resource", n.resource, "operation", strings.TrimPrefix(action, actionPrefix), "suppressed_before", suppressed, "request_id", r.id(),
		slog.Group("audit", "principal", n.principal, "client", r.http.RemoteAddr().String()))
}

const (
	denialsEvery = time.Second // of one principal
	maxDenied    = 1000        // principals that are remembered
)

// denials bound how often one principal's are written: a client that tries again without a pause
// must not fill the log. Safe for concurrent use.
type denials struct {
	mu sync.Mutex
	of map[string]denied
}

type denied struct {
	told       time.Time
	suppressed int
}

// due reports whether a denial is written now, and how many were not since the last.
func (d *denials) due(principal string, now time.Time) (suppressed int, due bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	last, known := d.of[principal]
	if known && now.Sub(last.told) < denialsEvery {
		last.suppressed++
		d.of[principal] = last
		return 0, false
	}
	if d.of == nil || len(d.of) >= maxDenied {
		d.of = map[string]denied{}
	}
	d.of[principal] = denied{told: now}
	return last.suppressed, true
}

// readsAll reports whether credentials that are not limited to their resource read the rest now.
func (c config) readsAll(s credentials.Session) bool {
	return c.Rights == nil || c.Rights.May(s.Principal, access.S3Read, "")
}
