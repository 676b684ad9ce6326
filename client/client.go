// Package client is the Go client of fencegate's HTTP API: it acquires, renews and releases leases, and requests S3
// credentials for them.
//
// The guarantee: a [Lease] is over no later than its deadline says. Every deadline counts from before the request was
// sent, on a clock that runs through suspensions of the machine ([clock]), so a slow reply or a suspension shortens a
// lease here, and nothing lengthens it. Writes are safe without it: the fence refuses the grant of a superseded or
// released lease.
//
//	c, err := client.New(client.Config{URL: "http://127.0.0.1:7070", Token: token})
//	if err != nil {
//		return err
//	}
//	lease, err := c.Acquire(ctx, client.AcquireRequest{Resource: "orders/1001", TTL: 30 * time.Second})
//	if err != nil {
//		return err // *client.Problem: the gateway's answer; *client.UnreachableError: no answer
//	}
//	defer c.Release(context.WithoutCancel(ctx), lease.Handle)
//	grant, err := lease.Grant() // present it with each write, until lease.Deadline
//
// Requests and answers are those of package wire. A Client is safe for concurrent use.
package client

import (
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"math"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/clock"
	"github.com/fencegate/fencegate/wire"
)

// requestTimeout bounds a call, in addition to the wait that it asks for.
const requestTimeout = 15 * time.Second

// maxReply bounds how much of a reply is read, in bytes.
const maxReply = 4 << 20

// Config configures a [Client].
type Config struct {
	URL   string // base URL, such as http://127.0.0.1:7070; or several gateways of one group, separated by commas
	Token string // bearer token; empty sends none
	// TokenNow returns the current bearer token for each request, for tokens that are rotated. It is called
	// concurrently. Defaults to Token.
	TokenNow   func() string
	HTTPClient *http.Client // default: a client like http.DefaultClient that speaks HTTP/1.1 only. Redirects are never followed
	TLS        *tls.Config  // of the default HTTPClient
	UserAgent  string       // the program's name in the gateway's events; default: fencegate-client
	Clock      *clock.Clock // by which deadlines count; default: this machine's
}

// Client calls one gateway, a load balancer in front of several, or several gateways of a group. In a group it tries
// the next gateway if one is unreachable or unavailable, or does not answer within its share of the request's time. A
// request that is not safe to repeat goes on to the next gateway only if it was not sent to this one.
type Client struct {
	bases []string
	last  atomic.Int64 // index of the gateway to ask first: the one that answered last, or the successor of a late one
	token func() string
	agent string
	http  *http.Client
	clock *clock.Clock
}

// New checks the configuration; it does not connect.
func New(cfg Config) (*Client, error) {
	c := &Client{token: cfg.TokenNow, agent: cmp.Or(cfg.UserAgent, "fencegate-client"), http: cfg.HTTPClient, clock: cmp.Or(cfg.Clock, clock.New())}
	if c.token == nil {
		c.token = func() string { return cfg.Token }
	}
	for base := range strings.SplitSeq(cfg.URL, ",") {
		u, err := baseOf(strings.TrimSpace(base))
		if err != nil {
			return nil, err
		}
		c.bases = append(c.bases, u)
	}
	if c.http == nil {
		c.http = defaultHTTP(cfg.TLS)
	}
	c.http = unredirected(c.http)
	return c, nil
}

// Now is the present moment on the clock by which deadlines count.
func (c *Client) Now() clock.Instant { return c.clock.Now() }

func baseOf(text string) (string, error) {
	u, err := url.Parse(text)
	if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" {
		return "", &fence.InvalidError{Field: "gateway URL", Reason: "is not of the form http://host:port"}
	}
	if u.User != nil {
		return "", &fence.InvalidError{Field: "gateway URL", Reason: "holds credentials; pass the token by --token-file or FENCEGATE_TOKEN"}
	}
	if u.RawQuery != "" || u.Fragment != "" {
		return "", &fence.InvalidError{Field: "gateway URL", Reason: "has a query or a fragment; it ends with the port or a path, and the token is passed by --token-file or FENCEGATE_TOKEN"}
	}
	return strings.TrimRight(u.String(), "/"), nil
}

// AcquireRequest asks for a lease.
type AcquireRequest struct {
	Resource string        // plain name
	TTL      time.Duration // zero takes the gateway's default
	Wait     time.Duration // how long to wait while another holds it; zero tries once
	Holder   string        // display name of the holder
}

func (r AcquireRequest) validate() error {
	switch {
	case r.TTL < 0:
		return &fence.InvalidError{Field: "ttl", Reason: "is negative"}
	case r.Wait < 0:
		return &fence.InvalidError{Field: "wait", Reason: "is negative"}
	}
	return fence.ValidateResource(r.Resource)
}

// Lease is what the gateway granted.
type Lease struct {
	Resource  string
	Token     fence.Token
	Presented string        // "34.<seal>": a secret
	Handle    string        // for Renew, Release and Credentials: a secret
	TTL       time.Duration // as granted
	Deadline  Deadline
}

// Grant returns the grant to present with each write under the lease.
func (l Lease) Grant() (fence.Grant, error) { return fence.ParseGrant(l.Resource, l.Presented) }

// Acquire asks for a lease. While another holds the resource it waits up to Wait, then fails with a [*Problem] whose
// code is "held". If an answer is lost it retries up to twice with the same Idempotency-Key and the rest of the wait, so
// at most one lease is granted. After an [*UnreachableError] a lease may have been granted all the same; its handle is
// lost, and it expires after its TTL.
func (c *Client) Acquire(ctx context.Context, r AcquireRequest) (Lease, error) {
	if err := r.validate(); err != nil {
		return Lease{}, err
	}
	body := func(wait time.Duration) any {
		return wire.AcquireRequest{Resource: r.Resource, TTL: text(r.TTL), Wait: text(wait), Holder: r.Holder}
	}
	ctx, cancel := patiently(ctx, r.Wait)
	defer cancel()
	var reply wire.Lease
	sent, err := c.acquire(ctx, "/v1/leases", r.Wait, body, &reply)
	if err != nil {
		return Lease{}, err
	}
	return c.leaseOf(reply, sent), nil
}

// AcquireAll asks for the leases of several resources, all or none, and returns them in the same order. r.Resource is
// ignored. The errors are those of [Client.Acquire]; the [*Problem] names the resource that is held.
func (c *Client) AcquireAll(ctx context.Context, resources []string, r AcquireRequest) ([]Lease, error) {
	for _, r.Resource = range resources {
		if err := r.validate(); err != nil {
			return nil, err
		}
	}
	body := func(wait time.Duration) any {
		return wire.AcquireAllRequest{Resources: resources, TTL: text(r.TTL), Wait: text(wait), Holder: r.Holder}
	}
	ctx, cancel := patiently(ctx, r.Wait)
	defer cancel()
	var reply wire.Leases
	sent, err := c.acquire(ctx, "/v1/leases/all", r.Wait, body, &reply)
	if err != nil {
		return nil, err
	}
	all := make([]Lease, len(reply.Leases))
	for i, one := range reply.Leases {
		all[i] = c.leaseOf(one, sent)
	}
	return all, nil
}

func patiently(ctx context.Context, wait time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, min(wait, math.MaxInt64-requestTimeout)+requestTimeout)
}

func (c *Client) leaseOf(reply wire.Lease, sent clock.Instant) Lease {
	return Lease{
		Resource: reply.Resource, Token: reply.Token, Presented: reply.Grant, Handle: reply.Handle,
		TTL:      time.Duration(reply.TTLMS) * time.Millisecond,
		Deadline: deadlineOf(reply.Timing, sent),
	}
}

// text formats a duration of a request; nil for 0, which leaves it to the gateway.
func text(d time.Duration) *string {
	if d == 0 {
		return nil
	}
	t := d.String()
	return &t
}

// Renew extends the lease to ttl from now and returns its new deadline. A [*Problem] with code "lease_lost" means
// that another holder may have the resource by now. After any other error the old deadline stays in force, or ttl from
// the call if that is sooner: the gateway may have renewed it.
func (c *Client) Renew(ctx context.Context, handle string, ttl time.Duration) (Deadline, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	asked := ttl.String()
	var reply wire.Renewed
	sent, err := c.exchange(ctx, request{method: http.MethodPost, path: "/v1/leases/renew", body: wire.RenewRequest{Handle: handle, TTL: &asked}, again: true}, &reply)
	if err != nil {
		return Deadline{}, err
	}
	return deadlineOf(reply.Timing, sent), nil
}

// Release ends the lease. Releasing twice is not an error, nor is releasing a lease that was lost: [Client.Renew] tells
// whether it is held. If ctx has ended, nothing is sent: a deferred Release needs [context.WithoutCancel].
func (c *Client) Release(ctx context.Context, handle string) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	return c.again(ctx, "/v1/leases/release", wire.HandleRequest{Handle: handle}, nil)
}

// Credentials asks for S3 credentials of a lease. They end with the lease. Refreshing credentials are valid until its
// current deadline: ask again after each renewal.
func (c *Client) Credentials(ctx context.Context, r wire.CredentialsRequest) (wire.Credentials, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	var creds wire.Credentials
	err := c.again(ctx, "/v1/leases/credentials", r, &creds)
	return creds, err
}

// Endpoints asks the gateway for the addresses of its ports.
func (c *Client) Endpoints(ctx context.Context) (wire.Endpoints, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	var e wire.Endpoints
	err := c.call(ctx, http.MethodGet, "/v1/endpoints", nil, &e)
	return e, err
}

// Resource returns the state of a resource, as JSON.
func (c *Client) Resource(ctx context.Context, resource string) (json.RawMessage, error) {
	if err := fence.ValidateResource(resource); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	var raw json.RawMessage
	err := c.call(ctx, http.MethodGet, "/v1/resources/"+fence.EscapeResource(resource), nil, &raw)
	return raw, err
}

// Inspect is [Client.Resource] with decoded fields. For a name that has no fence, because it was never held or the
// fence was retired, the error is a [*Problem] with code "not_found".
func (c *Client) Inspect(ctx context.Context, resource string) (wire.Resource, error) {
	var known wire.Resource
	raw, err := c.Resource(ctx, resource)
	if err == nil {
		err = json.Unmarshal(raw, &known)
	}
	return known, err
}

// Revoke takes a resource from its holder. It returns the token that the fence was raised to. by is the name of the
// operator, for display.
func (c *Client) Revoke(ctx context.Context, resource, by string) (wire.Revoked, error) {
	if err := fence.ValidateResource(resource); err != nil {
		return wire.Revoked{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, 2*requestTimeout) // includes draining the holder's writes
	defer cancel()
	var revoked wire.Revoked
	err := c.call(ctx, http.MethodPost, "/v1/resources/"+fence.EscapeResource(resource)+"/revoke", wire.RevokeRequest{Holder: by}, &revoked)
	return revoked, err
}

// Check asks whether the fence accepts a grant now. Use it before a side effect outside a transaction. A newer holder
// may take over between the answer and the effect. The error is the same refusal as for a write.
func (c *Client) Check(ctx context.Context, g fence.Grant) (wire.Checked, error) {
	if err := g.Validate(); err != nil {
		return wire.Checked{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	var checked wire.Checked
	_, err := c.exchange(ctx, request{method: http.MethodPost, path: "/v1/check", grant: g, again: true}, &checked)
	return checked, err
}

// introduce sets the User-Agent and the bearer token.
func (c *Client) introduce(req *http.Request) {
	req.Header.Set("User-Agent", c.agent)
	if token := c.token(); token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
}
