package kubelock_test

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"

	coordinationv1 "k8s.io/api/coordination/v1"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/rest"
)

// apiServer stores a test's Leases: a stand-in for kube-apiserver, or a namespace of a real one. Its users are
// "candidate", who may get, create and update Leases, and "other", who may not. Each sends its name as a bearer token.
type apiServer struct {
	leaseStore
	URL       string
	namespace string
	roots     *x509.CertPool
	memory    http.RoundTripper // a stand-in's; nil: the server is on the network
}

// leaseStore holds the operations of an operator.
type leaseStore interface {
	// lease returns the current Lease; nil: there is none.
	lease(name string) *coordinationv1.Lease
	// put creates a Lease with annotations.
	put(name string, annotations map[string]string)
	// give changes the holder of a Lease.
	give(name, holder string)
	remove(name string)
	// history returns every version of every Lease that a candidate wrote, in order.
	history() []coordinationv1.Lease
}

func newAPIServer(t testing.TB) *apiServer {
	t.Helper()
	if kubernetes != nil {
		return kubernetes.space(t)
	}
	return newStandIn()
}

// electing runs a test of elections: in a bubble of testing/synctest over a stand-in, or on the real server.
func electing(t *testing.T, test func(t *testing.T, s *apiServer)) {
	t.Helper()
	if kubernetes != nil {
		test(t, kubernetes.space(t))
		return
	}
	synctest.Test(t, func(t *testing.T) { test(t, newStandIn()) })
}

func (s *apiServer) holder(name string) string { return holderOf(s.lease(name)) }

func holderOf(lease *coordinationv1.Lease) string {
	if lease == nil || lease.Spec.HolderIdentity == nil {
		return ""
	}
	return *lease.Spec.HolderIdentity
}

func (s *apiServer) transport() *http.Transport {
	return &http.Transport{TLSClientConfig: &tls.Config{RootCAs: s.roots}, ForceAttemptHTTP2: true}
}

// network is the network between one process and the API server.
type network struct {
	next http.RoundTripper

	mu    sync.Mutex
	gate  chan struct{}              // requests wait until it is closed; nil: none waits
	lose  func(r *http.Request) bool // before each answer: it is lost
	count int                        // of requests
}

func (n *network) RoundTrip(r *http.Request) (*http.Response, error) {
	n.mu.Lock()
	held, lose := n.gate, n.lose
	n.count++
	n.mu.Unlock()
	if held != nil {
		select {
		case <-held:
		case <-r.Context().Done():
			return nil, r.Context().Err()
		}
	}
	response, err := n.next.RoundTrip(r)
	if err == nil && lose != nil && lose(r) {
		_, _ = io.Copy(io.Discard, response.Body)
		response.Body.Close()
		return nil, errors.New("the answer was lost")
	}
	return response, err
}

// cut holds every request until restore is called.
func (n *network) cut() (restore func()) {
	held := make(chan struct{})
	n.mu.Lock()
	defer n.mu.Unlock()
	n.gate = held
	return sync.OnceFunc(func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		n.gate = nil
		close(held)
	})
}

// requests returns the number of requests.
func (n *network) requests() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.count
}

// client is the client of one process.
func (s *apiServer) client(t testing.TB, token string) (coordinationclient.LeasesGetter, *network) {
	t.Helper()
	next := s.memory
	if next == nil {
		transport := s.transport()
		t.Cleanup(transport.CloseIdleConnections)
		next = transport
	}
	return clientOver(t, next, s.URL, token)
}

// clientOver is a client of the server that next reaches.
func clientOver(t testing.TB, next http.RoundTripper, host, token string) (coordinationclient.LeasesGetter, *network) {
	t.Helper()
	n := &network{next: next}
	c, err := coordinationclient.NewForConfig(&rest.Config{
		Host: host, BearerToken: token, QPS: -1, ContentConfig: rest.ContentConfig{ContentType: "application/json"},
		Transport: n,
	})
	if err != nil {
		t.Fatal(err)
	}
	return c, n
}
