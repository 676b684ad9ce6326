package runner

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/fencegate/fencegate/client"
	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/clock"
	"github.com/fencegate/fencegate/wire"
)

// Kind is the kind of a command's S3 credentials.
type Kind int

// The kinds of credentials.
const (
	Refreshing Kind = iota // the SDK fetches them from this process repeatedly; they are bounded by the lease's deadline
	Static                 // in variables, for tools that support no others; they end with the lease, or after a day
)

// ParseKind reads "refreshing" or "static".
func ParseKind(s string) (Kind, error) {
	switch s {
	case "refreshing":
		return Refreshing, nil
	case "static":
		return Static, nil
	}
	return 0, &fence.InvalidError{Field: "s3-credentials", Reason: fmt.Sprintf("is %q; it must be refreshing or static", s)}
}

// S3Access says which S3 credentials a command gets, and what they allow.
type S3Access struct {
	Kind Kind
	// Resource names their lease. Defaults to "": the only lease; with several leases, no credentials.
	Resource          string
	OwnKeys, ReadOnly bool // see [wire.CredentialsRequest]
	Required          bool // a gateway without an S3 port is refused
}

// lease returns the credentials' lease; false if it is ambiguous.
func (a S3Access) lease(leases []client.Lease) (client.Lease, bool) {
	if a.Resource == "" && len(leases) == 1 {
		return leases[0], true
	}
	i := slices.IndexFunc(leases, func(l client.Lease) bool { return l.Resource == a.Resource })
	if i < 0 {
		return client.Lease{}, false
	}
	return leases[i], true
}

func (a S3Access) request(lease client.Lease) wire.CredentialsRequest {
	return wire.CredentialsRequest{Handle: lease.Handle, Refreshing: a.Kind == Refreshing, OwnKeys: a.OwnKeys, ReadOnly: a.ReadOnly}
}

const (
	// fetchTimeout is below the two seconds that botocore waits for an answer.
	fetchTimeout = 1500 * time.Millisecond
	// refreshPatience is how long a client with valid credentials waits for newer ones.
	refreshPatience = 500 * time.Millisecond
	// lastFor is for how long an SDK may use the last credentials of a lease that is over, before it asks again. SDKs refuse
	// expired ones.
	lastFor = 10 * time.Second
	// headTimeout bounds the headers of a request from our child.
	headTimeout = 5 * time.Second
)

// provider serves a lease's refreshing credentials on loopback, in the protocol in which SDKs fetch those of a
// container. Clients must present a token that only the command's environment has.
type provider struct {
	client  *client.Client
	request wire.CredentialsRequest
	ttl     time.Duration
	url     string
	token   string // a secret
	server  *http.Server
	served  chan struct{}
	life    context.Context // ends with close
	end     context.CancelFunc

	mu      sync.Mutex
	last    issued
	over    bool     // the lease is over: last stays
	running *refresh // nil: none
}

// issued are credentials with their end on this machine's clocks, which may differ from the gateway's.
type issued struct {
	wire.Credentials

	until clock.Instant
}

func issue(ctx context.Context, c *client.Client, r wire.CredentialsRequest) (issued, error) {
	asked := c.Now()
	creds, err := c.Credentials(ctx, r)
	return issued{creds, asked.Add(time.Duration(creds.ValidMS) * time.Millisecond)}, err
}

// refresh is a request for newer credentials, which all clients share. Its result is set when done is closed.
type refresh struct {
	done  chan struct{}
	creds issued
	err   error
}

// newProvider serves until close is called. The first credentials are the given ones.
func newProvider(c *client.Client, lease client.Lease, r wire.CredentialsRequest, first issued) (*provider, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("serve the lease's S3 credentials: %w", err)
	}
	p := &provider{
		client: c, request: r, ttl: lease.TTL, token: rand.Text(), last: first, served: make(chan struct{}),
		url: "http://" + ln.Addr().String() + "/credentials",
	}
	p.life, p.end = context.WithCancel(context.Background())
	p.server = &http.Server{Handler: p, ReadHeaderTimeout: headTimeout}
	go func() {
		defer close(p.served)
		_ = p.server.Serve(ln) // ends with close
	}()
	return p, nil
}

func (p *provider) close() {
	p.end()
	_ = p.server.Close()
	<-p.served
	p.mu.Lock()
	running := p.running
	p.mu.Unlock()
	if running != nil {
		<-running.done
	}
}

// ServeHTTP implements [http.Handler].
func (p *provider) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	switch {
	case subtle.ConstantTimeCompare([]byte(r.Header.Get("Authorization")), []byte(p.token)) != 1:
		refuse(w, http.StatusForbidden, "AccessDenied", "the authorization token is another")
		return
	case r.URL.Path != "/credentials" || r.Method != http.MethodGet:
		refuse(w, http.StatusNotFound, "NotFound", "GET /credentials is all there is")
		return
	}
	creds, err := p.current(r.Context())
	if err != nil {
		refuse(w, http.StatusServiceUnavailable, "NoCredentials", err.Error())
		return
	}
	answer(w, map[string]any{
		"AccessKeyId": creds.AccessKeyID, "SecretAccessKey": creds.SecretAccessKey, "Token": creds.SessionToken,
		"Expiration": time.Now().Add(p.usable(creds)).UTC().Format(time.RFC3339Nano),
	})
}

// usable returns for how long an SDK may use credentials before it asks again.
func (p *provider) usable(creds issued) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.over {
		return lastFor
	}
	return creds.until.Left()
}

// current returns credentials with half of the lease left. The lease is renewed after a third, so each set is used for
// some time. If fetching fails or takes long, older credentials are better than none. When the lease is over it returns
// the last ones: the S3 port answers what was done with them, and refuses everything else.
func (p *provider) current(ctx context.Context) (issued, error) {
	last, running := p.refreshed()
	if running == nil {
		return last, nil
	}
	valid := last.until.Left() > refreshPatience // still, when they are given
	var tooLong <-chan time.Time
	if valid {
		patience := time.NewTimer(refreshPatience)
		defer patience.Stop()
		tooLong = patience.C
	}
	select {
	case <-running.done:
		if running.err != nil && valid {
			return last, nil
		}
		return running.creds, running.err
	case <-tooLong:
		return last, nil
	case <-ctx.Done():
		return issued{}, ctx.Err()
	}
}

// refreshed returns the last credentials, and the running refresh if they need one. At most one runs at a time.
func (p *provider) refreshed() (issued, *refresh) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.over || p.last.until.Left() > p.ttl/2 {
		return p.last, nil
	}
	if p.running == nil {
		p.running = &refresh{done: make(chan struct{})}
		go p.fetch(p.running)
	}
	return p.last, p.running
}

// fetch carries out a refresh. It does not end with the client that started it, because others may wait for it.
func (p *provider) fetch(r *refresh) {
	defer close(r.done)
	ctx, cancel := context.WithTimeout(p.life, fetchTimeout)
	defer cancel()
	fresh, err := issue(ctx, p.client, p.request)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.running, r.err = nil, err
	switch {
	case err == nil:
		r.creds, p.last = fresh, fresh
	case lost(err), errors.Is(err, fence.ErrStale):
		r.creds, r.err, p.over = p.last, nil, true
	}
}

func refuse(w http.ResponseWriter, status int, code, message string) {
	w.WriteHeader(status)
	answer(w, map[string]any{"code": code, "message": message})
}

func answer(w http.ResponseWriter, v map[string]any) {
	_ = json.NewEncoder(w).Encode(v) // the client may have gone
}

// commandEnviron returns the variables with which an SDK fetches the credentials, and finds no others first.
func (p *provider) environ() map[string]string {
	return map[string]string{
		"AWS_CONTAINER_CREDENTIALS_FULL_URI": p.url, "AWS_CONTAINER_AUTHORIZATION_TOKEN": p.token,
		"AWS_SHARED_CREDENTIALS_FILE": os.DevNull, "AWS_CONFIG_FILE": os.DevNull,
	}
}
