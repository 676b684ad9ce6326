package api

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/gateway/access"
	"github.com/fencegate/fencegate/wire"
)

// credentialCalls issue S3 credentials for leases, and say where the other ports are.
type credentialCalls struct {
	credentials Credentials // nil: there is no S3 port
	leases      Leases
	fences      Fences
	handles     *sealer
	journal     *journal
	endpoints   func(host string) wire.Endpoints // nil: there are none
}

func (k *credentialCalls) issue(c echo.Context) error {
	var body wire.CredentialsRequest
	if err := decode(c, &body); err != nil {
		return err
	}
	h, err := k.handles.open(body.Handle)
	if err == nil {
		err = mayWrite(c, h)
	}
	switch {
	case err != nil:
		return err
	case k.credentials == nil:
		return errNoS3Port
	}
	left, err := h.left()
	if err != nil {
		return err
	}
	asked := time.Now()
	most := asked.Add(min(left, MaxCredentials))
	state, err := k.stateOf(c.Request().Context(), h.Ref)
	expires := most
	if err == nil && body.Refreshing {
		expires, err = deadlineOf(c.Request().Context(), h, asked, most, state)
	}
	if err != nil {
		return err
	}
	p := access.Of(c.Request().Context())
	creds, err := k.credentials.Issue(h.Resource, h.Token, expires, CredentialTerms{
		WhileHeld: !body.Refreshing, OwnKeys: body.OwnKeys || !p.May(access.S3Read, ""), ReadOnly: body.ReadOnly,
		EndHeld: !body.Refreshing && p.Expires(), Principal: h.Principal,
	})
	if err != nil {
		return err
	}
	k.journal.credentials(c.Request(), h, body.ReadOnly)
	creds.ExpiresAt, creds.ValidMS = creds.ExpiresAt.UTC(), max(0, time.Until(creds.ExpiresAt).Milliseconds())
	if e := k.endpointsFor(c); e.S3 != nil {
		creds.EndpointURL, creds.Region = e.S3.URL, e.S3.Region
	}
	return respond(c, http.StatusOK, creds)
}

// deadlineOf returns when a lease ends unless it is renewed, but not later than most. Only the lock knows it.
func deadlineOf(ctx context.Context, h handle, asked, most time.Time, state lockAnswer) (time.Time, error) {
	switch {
	case state.err != nil:
		return time.Time{}, leaseError(ctx, state.err)
	case state.TTL < 0 || asked.Add(state.TTL).After(most):
		return most, nil
	}
	return asked.Add(state.TTL), nil
}

// stateOf asks the fence, which refuses the writes of a lease that is no longer recorded, and at the same time the
// lock, which knows whether a lease has expired that nobody has taken over. Without a quorum of Redis the fence's
// answer is enough.
func (k *credentialCalls) stateOf(ctx context.Context, ref leasing.Ref) (state lockAnswer, err error) {
	var asked sync.WaitGroup
	asked.Go(func() { state = askLock(ctx, k.leases, ref.Resource) })
	record, err := recordOf(ctx, k.fences, ref.Resource)
	asked.Wait()
	switch {
	case err != nil:
		return state, err
	case record.Token != ref.Token:
		return state, &fence.StaleError{Resource: ref.Resource, Presented: ref.Token, Recorded: record.Token}
	case record.EndedAt != nil, state.err == nil && !state.Locked:
		return state, fmt.Errorf("%w: it was released, or has ended", leasing.ErrLost)
	}
	return state, nil
}

// showEndpoints answers with the addresses of the other ports, under the host name by which the client reached this
// one.
func (k *credentialCalls) showEndpoints(c echo.Context) error {
	return respond(c, http.StatusOK, k.endpointsFor(c))
}

func (k *credentialCalls) endpointsFor(c echo.Context) wire.Endpoints {
	if k.endpoints == nil {
		return wire.Endpoints{}
	}
	return k.endpoints(hostname(c.Request().Host))
}
