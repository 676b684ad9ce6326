package s3

import (

	//nolint:gosec // S3 defines the ETag as the MD5 of the bytes
	//nolint:gosec // S3 defines the ETag of a multipart object by the MD5 of its parts

	"log/slog"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/fencegate/fencegate/gateway/access"
	"github.com/fencegate/fencegate/gateway/s3/credentials"
)

// Rights say what a principal may do now.
type Rights interface {
	May(principal string, v access.Verb, resource string) bool
}

// right is a right that a request needs.
type right struct {
	principal string
	verb      access.Verb
	resource  string
}

// needed returns the right that the signer of a request needs. The principal of a lease's credentials must still have
// the right to acquire the resource. The port's own key is a principal of its own. asked is false for an unsigned
// request, which is refused elsewhere.
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

// permitted reports whether the request is allowed, and logs a denial.
func (b *backend) permitted(r request, s credentials.Session, leased bool, action string) bool {
	n, asked := b.cfg.needed(r, s, leased)
	if !asked || b.cfg.Rights.May(n.principal, n.verb, n.resource) {
		return true
	}
	b.tellDenied(r, n, action)
	return false
}

// readsAll reports whether credentials without OwnKeys may read other resources' objects now.
func (c config) readsAll(s credentials.Session) bool {
	return c.Rights == nil || c.Rights.May(s.Principal, access.S3Read, "")
}

// tellDenied writes an audit line, at most one per principal and denialsEvery.
func (b *backend) tellDenied(r request, n right, action string) {
	suppressed, due := b.denials.due(n.principal, time.Now())
	if !due {
		return
	}
	b.cfg.Logger.Info("a request was denied", "verb", n.verb, "resource", n.resource, "operation", strings.TrimPrefix(action, actionPrefix), "suppressed_before", suppressed, "request_id", r.id(),
		slog.Group("audit", "principal", n.principal, "client", r.http.RemoteAddr().String()))
}

const (
	denialsEvery = time.Second // per principal
	maxDenied    = 1000        // remembered principals
)

// denials limits the logged denials of each principal: a client that retries without a pause must not fill the log.
// Safe for concurrent use.
type denials struct {
	mu sync.Mutex
	of map[string]denied
}

type denied struct {
	told       time.Time
	suppressed int
}

// due reports whether a denial is logged now, and how many were suppressed since the last.
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
