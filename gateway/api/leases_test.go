package api_test

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencegate/fencegate/fence/clock"
	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/gateway/api"
	"github.com/fencegate/fencegate/wire"
)

// The lock's answer came when the lease was over, and so does the client's.
func TestALeaseThatIsOverWhenItIsAnsweredEndedInThePast(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFakes()
		s := newServer(t, f)
		inner := f.acquire
		var lasts time.Duration
		f.acquire = func(ctx context.Context, req leasing.Request) (leasing.Lease, error) {
			lease, err := inner(ctx, req)
			lasts = lease.Deadline.Left()
			time.Sleep(lasts + time.Second)
			return lease, err
		}
		a := request(t, s, "POST", "/v1/leases", `{"resource":"a","ttl":"20s"}`)
		if valid, elapsed := a.body["valid_ms"], a.body["elapsed_ms"]; valid != 0. || elapsed != float64(lasts.Milliseconds()) {
			t.Errorf("%d: valid_ms %v, elapsed_ms %v, where the lease lasted for %v", a.status, valid, elapsed, lasts)
		}
	})
}

// pausing is a source after whose answers the process pauses for ten seconds.
type pausing struct {
	leases

	pause func(time.Duration)
	end   clock.Instant // of the lease
	lasts time.Duration // from the request's arrival, because the source answers at once
}

func (p *pausing) Acquire(ctx context.Context, wait leasing.Wait, all ...leasing.Request) ([]leasing.Lease, error) {
	given, err := p.leases.Acquire(ctx, wait, all...)
	if err == nil {
		p.answer(given[0].Deadline)
	}
	return given, err
}

func (p *pausing) Extend(ctx context.Context, ref leasing.Ref, ttl time.Duration) (clock.Instant, error) {
	end, err := p.leases.Extend(ctx, ref, ttl)
	p.answer(end)
	return end, err
}

func (p *pausing) answer(end clock.Instant) {
	p.end, p.lasts = end, end.Left()
	p.pause(10 * time.Second)
}

// The process may pause, or its machine be suspended, between the source's answer and the API's.
func TestNoAnswerReachesPastTheLeasesEnd(t *testing.T) {
	t.Parallel()
	for how, pause := range map[string]func(*fakes) func(time.Duration){
		"paused":    func(*fakes) func(time.Duration) { return time.Sleep },
		"suspended": func(f *fakes) func(time.Duration) { return f.clock.Suspend },
	} {
		synctest.Test(t, func(t *testing.T) {
			f := newFakes()
			keeping(f)
			p := &pausing{leases: leases{f}, pause: pause(f)}
			s := newServer(t, f, func(c *api.Config) { c.Leases = p })
			tells := func(what string, status int, a answer) {
				t.Helper()
				elapsed, _ := a.body["elapsed_ms"].(float64)
				valid, _ := a.body["valid_ms"].(float64)
				if a.status != status || valid != float64(p.end.Left().Milliseconds()) || elapsed+valid > float64(p.lasts.Milliseconds()) {
					t.Errorf("%s, %s: %d %s; %v are left of %v", what, how, a.status, a.text, p.end.Left(), p.lasts)
				}
			}
			acquire := func() answer {
				return request(t, s, "POST", "/v1/leases", `{"resource":"orders/1001","ttl":"30s"}`, wire.IdempotencyKey, aKey)
			}
			acquired := acquire()
			tells("acquired", http.StatusCreated, acquired)
			tells("found again", http.StatusCreated, acquire())
			tells("renewed", http.StatusOK, renew(t, s, acquired.str("handle")))
		})
	}
}

// An error of the source may name its part. Any other one comes from arming.
func TestAFailedAcquisitionNamesItsPart(t *testing.T) {
	t.Parallel()
	for want, err := range map[string]error{
		wire.PartRedis:    leasing.ErrUnavailable,
		wire.PartGateway:  leasing.ErrClosed,
		wire.PartPostgres: errors.New("dial 10.0.0.1: refused"),
		"etcd":            &leasing.UnavailableError{Part: "etcd"},
	} {
		f := newFakes()
		f.acquire = func(context.Context, leasing.Request) (leasing.Lease, error) { return leasing.Lease{}, err }
		if a := request(t, newServer(t, f), "POST", "/v1/leases", `{"resource":"a"}`); a.status != http.StatusServiceUnavailable || a.str("part") != want {
			t.Errorf("%v: %d %s; want part %s", err, a.status, a.text, want)
		}
	}
}
