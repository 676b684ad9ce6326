package kubelock_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/rest"
)

var leasesOf = schema.GroupResource{Group: "coordination.k8s.io", Resource: "leases"}

// apiServer stands in for kube-apiserver, as far as Leases go. It follows the real one's registry (v1.34): an update of what
// was changed since it was read is a conflict, as is one of what was deleted, because it names the old one's UID; an
// absent namespace is not found; who has no right is forbidden.
type apiServer struct {
	*httptest.Server

	mu      sync.Mutex
	version int
	leases  map[string]*coordinationv1.Lease // by namespace/name
	written []coordinationv1.Lease           // every version of each
}

func newAPIServer(t testing.TB) *apiServer {
	t.Helper()
	s := &apiServer{leases: make(map[string]*coordinationv1.Lease)}
	s.Server = httptest.NewServer(http.HandlerFunc(s.serve))
	t.Cleanup(s.Close)
	return s
}

// The prefix of a namespace's Leases; the only namespace that is there is "shop".
const leasesPath, namespace = "/apis/coordination.k8s.io/v1/namespaces/", "shop"

func (s *apiServer) serve(w http.ResponseWriter, r *http.Request) {
	lease, err := s.answer(r)
	w.Header().Set("Content-Type", "application/json")
	if status, ok := errors.AsType[*apierrors.StatusError](err); ok {
		answer := status.Status()
		answer.Kind, answer.APIVersion = "Status", "v1"
		w.WriteHeader(int(answer.Code))
		_ = json.NewEncoder(w).Encode(answer)
		return
	}
	lease.Kind, lease.APIVersion = "Lease", "coordination.k8s.io/v1"
	_ = json.NewEncoder(w).Encode(lease)
}

func (s *apiServer) answer(r *http.Request) (*coordinationv1.Lease, error) {
	space, path, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, leasesPath), "/leases")
	name := strings.TrimPrefix(path, "/")
	switch r.Header.Get("Authorization") {
	case "Bearer candidate":
	case "Bearer other":
		return nil, apierrors.NewForbidden(leasesOf, name, errors.New(`User "other" cannot do this`))
	default:
		return nil, apierrors.NewUnauthorized("Unauthorized")
	}
	body := &coordinationv1.Lease{}
	if r.Method != http.MethodGet {
		if err := json.NewDecoder(r.Body).Decode(body); err != nil {
			return nil, apierrors.NewBadRequest(err.Error())
		}
		if seconds := body.Spec.LeaseDurationSeconds; seconds != nil && *seconds <= 0 {
			return nil, apierrors.NewInvalid(schema.GroupKind{Group: leasesOf.Group, Kind: "Lease"}, name, nil)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.change(r.Method, space, name, body)
}

func (s *apiServer) change(method, space, name string, body *coordinationv1.Lease) (*coordinationv1.Lease, error) {
	if method == http.MethodPost {
		name = body.Name
	}
	now := s.leases[space+"/"+name]
	switch method {
	case http.MethodGet:
		if now == nil {
			return nil, apierrors.NewNotFound(leasesOf, name)
		}
		return now.DeepCopy(), nil
	case http.MethodPost:
		if space != namespace {
			return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "namespaces"}, space)
		}
		if now != nil {
			return nil, apierrors.NewAlreadyExists(leasesOf, name)
		}
		body.Namespace, body.UID = space, types.UID(fmt.Sprintf("uid-%d", s.version))
	default:
		if now == nil || body.UID != now.UID || body.ResourceVersion != now.ResourceVersion {
			return nil, apierrors.NewConflict(leasesOf, name, errors.New("the object has been modified"))
		}
	}
	s.version++
	body.ResourceVersion = strconv.Itoa(s.version)
	s.leases[space+"/"+name] = body
	s.written = append(s.written, *body.DeepCopy())
	return body.DeepCopy(), nil
}

// lease is the Lease as it is; nil: there is none.
func (s *apiServer) lease(name string) *coordinationv1.Lease {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.leases[namespace+"/"+name].DeepCopy()
}

func (s *apiServer) holder(name string) string {
	if lease := s.lease(name); lease != nil && lease.Spec.HolderIdentity != nil {
		return *lease.Spec.HolderIdentity
	}
	return ""
}

func (s *apiServer) remove(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.leases, namespace+"/"+name)
}

// put writes a Lease with an annotation, as kubectl does.
func (s *apiServer) put(name string, annotations map[string]string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version++
	s.leases[namespace+"/"+name] = &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{
		Namespace: namespace, Name: name, UID: types.UID(fmt.Sprintf("uid-%d", s.version)), ResourceVersion: strconv.Itoa(s.version),
		Annotations: maps.Clone(annotations),
	}}
}

// history is every version of a Lease.
func (s *apiServer) history() []coordinationv1.Lease {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.written)
}

// network is what lies between one process and the API server.
type network struct {
	next http.RoundTripper

	mu    sync.Mutex
	held  chan struct{}              // requests wait until it is closed; nil: none does
	lose  func(r *http.Request) bool // the answer is lost
	began time.Time                  // when the latest request came here
	after time.Duration              // answers take so long
	count int                        // of requests
}

func (n *network) RoundTrip(r *http.Request) (*http.Response, error) {
	n.mu.Lock()
	held, lose, after := n.held, n.lose, n.after
	n.began = time.Now()
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
	if after > 0 {
		<-time.After(after)
	}
	if err == nil && lose != nil && lose(r) {
		_, _ = io.Copy(io.Discard, response.Body)
		response.Body.Close()
		return nil, errors.New("the answer was lost")
	}
	return response, err
}

// cut holds every request until the network is mended.
func (n *network) cut() (mend func()) {
	held := make(chan struct{})
	n.mu.Lock()
	defer n.mu.Unlock()
	n.held = held
	return sync.OnceFunc(func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		n.held = nil
		close(held)
	})
}

// requests are how many came.
func (n *network) requests() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.count
}

// client is that of one process.
func client(t testing.TB, host, token string) (coordinationclient.LeasesGetter, *network) {
	t.Helper()
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	n := &network{next: transport}
	c, err := coordinationclient.NewForConfig(&rest.Config{
		Host: host, BearerToken: token, QPS: -1, ContentConfig: rest.ContentConfig{ContentType: "application/json"},
		Transport: n,
	})
	if err != nil {
		t.Fatal(err)
	}
	return c, n
}
