package pgwire

import (
	"strings"

	"github.com/fencegate/fencegate/gateway/activity"
	"github.com/fencegate/fencegate/wire"
)

// events reports to people what happens to one session.
type events struct {
	report  func(activity.Event) // nil: nobody listens
	client  *client
	session *session
}

// refusal reports a write that the fence refused, from the body of its ErrorResponse.
func (e *events) refusal(body []byte) {
	e.refused(string(responseField(body, 'C')), string(responseField(body, 'D')))
}

// refused reports what the fence refused. A refusal of a grant that is presented by its seal alone contains no token;
// the session may know it.
func (e *events) refused(sqlState, detail string) {
	if e.report == nil || !strings.HasPrefix(sqlState, "ZF0") {
		return
	}
	if event, ok := activity.RefusedByPostgres(sqlState, detail, e.newEvent()); ok {
		if event.Presented == 0 {
			event.Presented = e.session.tokenOf(event.Resource)
		}
		e.report(event)
	}
}

// ended reports that the gateway ends the session. If the session is in a statement or a transaction, which the fence
// would refuse, the end counts as a refusal.
func (e *events) ended(why *fatalError, busy bool) {
	if e.report == nil {
		return
	}
	event, refused := activity.RefusedByPostgres(why.code, why.detail, e.newEvent())
	if !refused {
		event = activity.Cleaned(e.newEvent())
	}
	if !refused || !busy {
		event.Kind, event.Code = wire.EventEnded, why.code
	}
	e.report(event)
}

// newEvent returns an event with what is known of the session.
func (e *events) newEvent() activity.Event {
	return activity.Event{Surface: wire.SurfacePG, Login: e.client.who.user, Client: e.client.address(), App: e.client.who.application}
}
