package client

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/clock"
	"github.com/fencegate/fencegate/wire"
)

// request is one request to any of the gateways.
type request struct {
	method, path string
	body         any                          // as JSON; nil: none
	waits        func(wait time.Duration) any // the body of a request that waits; nil: it does not
	grant        fence.Grant                  // grant to present; zero: none
	key          string                       // Idempotency-Key; "": none
	again        bool                         // idempotent: may be sent twice
	wait         time.Duration                // of all tries together
	began        time.Time                    // when the wait began
}

// until is the end of the wait.
func (r request) until() time.Time { return r.began.Add(r.wait) }

// left is the rest of the wait. Only whole milliseconds are taken off, so the first try asks for all of it.
func (r request) left() time.Duration {
	return max(0, r.wait-time.Since(r.began).Truncate(time.Millisecond))
}

// payload is the body of one try.
func (r request) payload() any {
	if r.waits != nil {
		return r.waits(r.left())
	}
	return r.body
}

func (c *Client) call(ctx context.Context, method, path string, body, reply any) error {
	_, err := c.exchange(ctx, request{method: method, path: path, body: body, again: method != http.MethodPost}, reply)
	return err
}

// again posts a request that may be sent twice.
func (c *Client) again(ctx context.Context, path string, body, reply any) error {
	_, err := c.exchange(ctx, request{method: http.MethodPost, path: path, body: body, again: true}, reply)
	return err
}

// acquire asks for leases with a new Idempotency-Key. If the lease of a lost answer is over by the time of the retry,
// it asks for another one, for the rest of the wait.
func (c *Client) acquire(ctx context.Context, path string, wait time.Duration, body func(wait time.Duration) any, reply any) (sent clock.Instant, err error) {
	r := request{method: http.MethodPost, path: path, waits: body, key: rand.Text(), again: true, wait: wait, began: time.Now()}
	sent, err = c.exchange(ctx, r, reply)
	if p, ok := errors.AsType[*Problem](err); ok && p.Code == wire.CodeLeaseLost {
		r.key = rand.Text()
		return c.exchange(ctx, r, reply)
	}
	return sent, err
}

// repeats are the pauses before retrying a request whose answer was lost. A stopping process closes its sockets one
// after the other, so it may accept a connection that it never answers.
var repeats = [...]time.Duration{50 * time.Millisecond, 500 * time.Millisecond}

// exchange sends a request until a gateway answers. If an answer was lost and the request may be sent twice, it
// retries after each of the pauses. It returns the time at which the answered request was sent.
func (c *Client) exchange(ctx context.Context, r request, reply any) (sent clock.Instant, err error) {
	sent, err = c.round(ctx, r, reply)
	for _, pause := range repeats {
		if !r.again || !answerLost(err) || !waited(ctx, pause) {
			return sent, err
		}
		first := err
		if sent, err = c.round(ctx, r, reply); notSent(err) {
			err = first // the first request may have been carried out
		}
	}
	return sent, err
}

// answerLost reports whether a request was sent and its connection was lost, or a load balancer gave up on it.
func answerLost(err error) bool {
	lost, ok := errors.AsType[*UnreachableError](err)
	return ok && lost.broken() || betweenLost(err)
}

// waited waits and reports whether the time has passed; false: the context ended.
func waited(ctx context.Context, d time.Duration) bool {
	over := time.NewTimer(d)
	defer over.Stop()
	select {
	case <-over.C:
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}

// round tries the gateways until one answers, starting with the one that answered last, or with its successor if it
// was late since. It goes on to the next if the request was not sent, was not carried out, or may be sent twice. That no
// gateway has issued the handle is the error only if each of them says so.
func (c *Client) round(ctx context.Context, r request, reply any) (sent clock.Instant, err error) {
	var unknown error // from a request that may have been carried out
	var other error   // from a gateway that may know the handle
	first := int(c.last.Load())
	for i := range c.bases {
		at := (first + i) % len(c.bases)
		sent, err = c.try(ctx, at, r, reply, len(c.bases)-i)
		lost, unanswered := errors.AsType[*UnreachableError](err)
		if err == nil || !c.passes(ctx, r, err) {
			switch {
			case unavailable(err): // the caller's next try starts at another
				c.last.CompareAndSwap(int64(at), int64((at+1)%len(c.bases)))
			case !unanswered:
				c.last.Store(int64(at))
			}
			return sent, err
		}
		if unanswered && !notSent(lost) || betweenLost(err) {
			unknown = err
		}
		if !foreign(err) {
			other = err
		}
	}
	return sent, cmp.Or(unknown, other, err)
}

// try asks one of the gateways that are left in a round. If that gateway is late, the next request starts at another
// one, even if ctx is over.
func (c *Client) try(ctx context.Context, at int, r request, reply any, left int) (sent clock.Instant, err error) {
	ctx, cancel := r.bound(ctx, left)
	defer cancel()
	if r.again || left == 1 {
		sent, err = c.one(ctx, c.bases[at], r, reply)
	} else {
		sent, err = c.once(ctx, c.bases[at], r, reply, share(ctx, time.Now(), left))
	}
	if late(ctx, err) {
		// A concurrent request may have found a gateway that answers.
		c.last.CompareAndSwap(int64(at), int64((at+1)%len(c.bases)))
	}
	return sent, err
}

// once asks one gateway for what must not be done twice. If there is no connection in time, the request was not sent.
func (c *Client) once(ctx context.Context, base string, r request, reply any, limit time.Duration) (sent clock.Instant, err error) {
	var connects connecting
	ctx, cancel := connects.within(ctx, limit)
	defer cancel()
	sent, err = c.one(ctx, base, r, reply)
	return sent, connects.unsent(err)
}

// passes reports whether the next gateway may be tried. A request that may not be sent twice goes on only if it was not
// sent, or if the gateway did not know its handle.
func (c *Client) passes(ctx context.Context, r request, err error) bool {
	if ctx.Err() != nil {
		return false
	}
	if p, ok := errors.AsType[*Problem](err); ok {
		return foreign(err) || r.again && (p.Status == http.StatusServiceUnavailable || betweenLost(err))
	}
	lost, ok := errors.AsType[*UnreachableError](err)
	return ok && (notSent(lost) || r.again)
}

// foreign reports whether the gateway has not issued the request's handle. One that has its master key may have.
func foreign(err error) bool {
	p, ok := errors.AsType[*Problem](err)
	return ok && p.Code == wire.CodeInvalid && p.Field == "handle"
}

// unavailable reports whether the gateway can't serve now.
func unavailable(err error) bool {
	p, ok := errors.AsType[*Problem](err)
	return ok && p.Code == wire.CodeUnavailable
}

// betweenLost reports whether a load balancer lost the gateway's answer: the outcome is unknown.
func betweenLost(err error) bool {
	p, ok := errors.AsType[*Problem](err)
	return ok && p.Code == "" && (p.Status == http.StatusBadGateway || p.Status == http.StatusGatewayTimeout)
}

// notSent reports whether no connection was made: the request was not carried out.
func notSent(err error) bool {
	lost, ok := errors.AsType[*UnreachableError](err)
	if !ok {
		return false
	}
	op, ok := errors.AsType[*net.OpError](lost.Cause)
	return ok && op.Op == "dial"
}

// broken reports whether a connection ended before the answer arrived, rather than timing out or being refused.
func (e *UnreachableError) broken() bool {
	op, isOp := errors.AsType[*net.OpError](e.Cause)
	return (errors.Is(e.Cause, io.EOF) || errors.Is(e.Cause, io.ErrUnexpectedEOF) || isOp && op.Op != "dial") && !e.timedOut()
}

// one asks one gateway.
func (c *Client) one(ctx context.Context, base string, r request, reply any) (sent clock.Instant, err error) {
	var payload io.Reader = http.NoBody
	body := r.payload()
	if body != nil {
		b, err := json.Marshal(body)
		if err != nil {
			return sent, err
		}
		payload = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, r.method, base+r.path, payload)
	if err != nil {
		return sent, err
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	c.headers(req, r)
	sent = c.clock.Now()
	resp, err := c.http.Do(req)
	if err != nil {
		return sent, &UnreachableError{URL: base, Cause: err}
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxReply))
	if err != nil {
		return sent, &UnreachableError{URL: base, Cause: err}
	}
	if resp.StatusCode >= http.StatusMultipleChoices || reply == nil && resp.StatusCode != http.StatusNoContent {
		return sent, problemOf(resp, b)
	}
	if reply == nil {
		return sent, nil
	}
	if err := json.Unmarshal(b, reply); err != nil {
		return sent, fmt.Errorf("reply of %s %s%s: %w", r.method, base, r.path, err)
	}
	return sent, nil
}

func (c *Client) headers(req *http.Request, r request) {
	req.Header.Set("Accept", "application/json, application/problem+json")
	c.introduce(req)
	if r.grant.Resource != "" {
		fence.SetHeader(req.Header, r.grant)
	}
	if r.key != "" {
		req.Header.Set(wire.IdempotencyKey, r.key)
	}
}
