package api

import (
	"log/slog"
	"net/http"

	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/gateway/access"
	"github.com/fencegate/fencegate/gateway/activity"
	"github.com/fencegate/fencegate/wire"
)

// journal writes the audit lines of the log and the events of the live page: who did what. It never contains a grant, a
// handle or a token of a principal.
type journal struct {
	log        *slog.Logger
	events     Events // nil: there are none
	principals bool   // there are principals; without, the client is not known, and the log leaves leases to the events
}

// audit logs what was done and, if there are principals, who did it.
func (j *journal) audit(r *http.Request, what string, attrs ...any) {
	if j.principals {
		attrs = append(attrs, who(r)...)
	}
	j.log.InfoContext(r.Context(), what, attrs...)
}

func who(r *http.Request) []any {
	return []any{slog.Group("audit", "principal", access.Of(r.Context()).Name(), "client", r.RemoteAddr)}
}

// grants records acquired leases.
func (j *journal) grants(r *http.Request, all []leasing.Lease) {
	for _, lease := range all {
		if j.principals {
			j.audit(r, "a lease was acquired", "resource", lease.Grant.Resource, "token", lease.Grant.Token)
		}
	}
	for _, lease := range all {
		j.leaseEvent(r, wire.EventAcquired, lease.Ref())
	}
}

// foreignUse logs the use of a lease by a principal that has not acquired it.
func (j *journal) foreignUse(r *http.Request, what string, h handle) {
	if h.Principal != access.Of(r.Context()).Name() {
		j.audit(r, what, "resource", h.Resource, "token", h.Token, "of", h.Principal)
	}
}

func (j *journal) credentials(r *http.Request, h handle, readOnly bool) {
	if j.principals {
		j.audit(r, "S3 credentials were issued", "resource", h.Resource, "token", h.Token, "read_only", readOnly)
	}
}

func (j *journal) denial(r *http.Request, denied *access.DeniedError, route string) {
	j.audit(r, "a request was denied", "verb", denied.Verb, "resource", denied.Resource, "route", route)
}

// event records an event of a request.
func (j *journal) event(r *http.Request, e activity.Event) {
	if j.events == nil {
		return
	}
	e.Client, e.App = r.RemoteAddr, r.UserAgent()
	j.events.Tell(activity.Cleaned(e))
}

// leaseEvent records an event about a lease.
func (j *journal) leaseEvent(r *http.Request, kind string, ref leasing.Ref) {
	e := activity.Event{Kind: kind, Surface: wire.SurfaceAPI, Resource: ref.Resource}
	if kind == wire.EventAcquired {
		e.Recorded = ref.Token
	} else {
		e.Presented = ref.Token
	}
	j.event(r, e)
}

// refusal records the event of err, if that is a refusal of the fence. about holds what err does not contain.
func (j *journal) refusal(r *http.Request, err error, about activity.Event) {
	if e, ok := activity.Refused(err, about); ok {
		j.event(r, e)
	}
}
