package kubelock_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

var leasesOf = schema.GroupResource{Group: "coordination.k8s.io", Resource: "leases"}

// standIn implements kube-apiserver's rules for Leases. An update of a Lease that was changed since it was read is a
// conflict, as is one of a deleted Lease, because it names the old UID. An absent namespace is not found. A user
// without the right is forbidden. With FENCEGATE_TEST_APISERVER the same tests run against the real server.
type standIn struct {
	mu      sync.Mutex
	version int
	leases  map[string]*coordinationv1.Lease // by namespace/name
	written []coordinationv1.Lease           // every version of each
}

func newStandIn() *apiServer {
	s := &standIn{leases: make(map[string]*coordinationv1.Lease)}
	return &apiServer{leaseStore: s, URL: "http://stand-in:6443", namespace: shop, memory: handler{s.serve}}
}

// handler answers requests without a connection, so that a bubble of testing/synctest can have it inside.
type handler struct{ serve http.HandlerFunc }

func (h handler) RoundTrip(r *http.Request) (*http.Response, error) {
	if err := r.Context().Err(); err != nil {
		return nil, err
	}
	answer := httptest.NewRecorder()
	h.serve(answer, r)
	return answer.Result(), nil
}

// leasesPath is the prefix of a namespace's Leases; shop is the only namespace.
const leasesPath, shop = "/apis/coordination.k8s.io/v1/namespaces/", "shop"

func (s *standIn) serve(w http.ResponseWriter, r *http.Request) {
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

func (s *standIn) answer(r *http.Request) (*coordinationv1.Lease, error) {
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

func (s *standIn) change(method, space, name string, body *coordinationv1.Lease) (*coordinationv1.Lease, error) {
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
		if space != shop {
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

func (s *standIn) lease(name string) *coordinationv1.Lease {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.leases[shop+"/"+name].DeepCopy()
}

func (s *standIn) remove(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.leases, shop+"/"+name)
}

func (s *standIn) put(name string, annotations map[string]string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version++
	s.leases[shop+"/"+name] = &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{
		Namespace: shop, Name: name, UID: types.UID(fmt.Sprintf("uid-%d", s.version)), ResourceVersion: strconv.Itoa(s.version),
		Annotations: maps.Clone(annotations),
	}}
}

func (s *standIn) give(name, holder string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version++
	lease := s.leases[shop+"/"+name]
	lease.Spec.HolderIdentity, lease.ResourceVersion = &holder, strconv.Itoa(s.version)
}

func (s *standIn) history() []coordinationv1.Lease {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.written)
}
