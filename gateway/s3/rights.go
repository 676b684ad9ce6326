package s3

import (
	"log/slog"
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

// authorizer asks for the rights of the principals that sign requests, and logs denials.
type authorizer struct {
	rights  Rights // nil: everybody may do everything
	root    string // root's access key
	log     *slog.Logger
	denials denials
}

// needed returns the right that the signer of a request needs. The principal of a lease's credentials must still have
// the right to acquire the resource. The port's own key is a principal of its own. asked is false for an unsigned
// request, which is refused elsewhere.
func (a *authorizer) needed(r request, s credentials.Session, leased bool) (n right, asked bool) {
	switch {
	case a.rights == nil || !leased && !r.root:
		return right{}, false
	case leased:
		return right{s.Principal, access.Acquire, s.Resource}, true
	}
	n = right{access.S3Prefix + a.root, access.Buckets, ""}
	if r.reads() {
		n.verb = access.S3Read
	}
	return n, true
}

// permits reports whether the request is allowed, and logs a denial.
func (a *authorizer) permits(r request, s credentials.Session, leased bool, action string) bool {
	n, asked := a.needed(r, s, leased)
	if !asked || a.rights.May(n.principal, n.verb, n.resource) {
		return true
	}
	a.logDenial(r, n, action)
	return false
}

// readsAll reports whether credentials without OwnKeys may read other resources' objects now.
func (a *authorizer) readsAll(s credentials.Session) bool {
	return a.rights == nil || a.rights.May(s.Principal, access.S3Read, "")
}

// logDenial writes an audit line, at most one per principal and denialsEvery.
func (a *authorizer) logDenial(r request, n right, action string) {
	suppressed, due := a.denials.due(n.principal, time.Now())
	if !due {
		return
	}
	a.log.Info("a request was denied", "verb", n.verb, "resource", n.resource, "operation", strings.TrimPrefix(action, actionPrefix), "suppressed_before", suppressed, "request_id", r.id(),
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
	of map[string]denial
}

type denial struct {
	logged     time.Time
	suppressed int // since then
}

// due reports whether a denial is logged now, and how many were suppressed since the last.
func (d *denials) due(principal string, now time.Time) (suppressed int, due bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	last, known := d.of[principal]
	if known && now.Sub(last.logged) < denialsEvery {
		last.suppressed++
		d.of[principal] = last
		return 0, false
	}
	if d.of == nil || len(d.of) >= maxDenied {
		d.of = map[string]denial{}
	}
	d.of[principal] = denial{logged: now}
	return last.suppressed, true
}
