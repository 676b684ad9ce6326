package kubelock_test

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	coreclient "k8s.io/client-go/kubernetes/typed/core/v1"
	rbacclient "k8s.io/client-go/kubernetes/typed/rbac/v1"
	"k8s.io/client-go/rest"

	"github.com/fencegate/fencegate/internal/child"
	"github.com/fencegate/fencegate/internal/etcdserver"
	"github.com/fencegate/fencegate/internal/testenv"
)

// kubernetes is the kube-apiserver that the tests share; nil: each test has a stand-in. FENCEGATE_TEST_APISERVER names
// the program; scripts/kube-apiserver builds it.
var kubernetes *realServer

// withKubernetes runs the tests while the server is up.
type withKubernetes struct{ tests testenv.Runner }

func (w withKubernetes) Run() int {
	program := os.Getenv("FENCEGATE_TEST_APISERVER")
	if program == "" {
		return w.tests.Run()
	}
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	k, err := startKubernetes(ctx, program)
	defer k.close()
	if err != nil {
		fmt.Fprintln(os.Stderr, "kube-apiserver:", err)
		return 1
	}
	kubernetes = k
	return w.tests.Run()
}

// realServer is a kube-apiserver with RBAC and its own etcd.
type realServer struct {
	etcd   *etcdserver.Cluster
	proc   *child.Process
	dir    string
	access *apiServer // the address, and the CA certificates
	http   *http.Client
	admin  *rest.Config
	leases *coordinationclient.CoordinationV1Client
	core   *coreclient.CoreV1Client
	rbac   *rbacclient.RbacV1Client
}

func startKubernetes(ctx context.Context, program string) (k *realServer, err error) {
	k = &realServer{}
	if k.dir, err = os.MkdirTemp("", "fencegate-kube-"); err != nil {
		return k, err
	}
	if err := child.RemoveAtDeath(k.dir); err != nil {
		return k, err
	}
	if k.etcd, err = etcdserver.Start(ctx, 1, ""); err != nil {
		return k, err
	}
	if err := k.start(program); err != nil {
		return k, err
	}
	if err := k.connect(ctx); err != nil {
		text, _ := os.ReadFile(filepath.Join(k.dir, "log"))
		return k, fmt.Errorf("%w; its log ends with: %s", err, text[max(0, len(text)-2000):])
	}
	return k, k.allow(ctx)
}

// start runs the server.
func (k *realServer) start(program string) error {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return err
	}
	text := pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)})
	tokens := "admin,admin,1,system:masters\ncandidate,candidate,2\nother,other,3\n"
	file := func(name string) string { return filepath.Join(k.dir, name) }
	err = errors.Join(os.WriteFile(file("key"), text, 0o600), os.WriteFile(file("tokens"), []byte(tokens), 0o600))
	if err != nil {
		return err
	}
	port, err := child.FreePort()
	if err != nil {
		return err
	}
	log, err := os.Create(file("log"))
	if err != nil {
		return err
	}
	defer log.Close()
	k.access = &apiServer{URL: fmt.Sprintf("https://127.0.0.1:%d", port)}
	k.proc, err = child.Start(child.Spec{
		Path: program, Log: log, DeathSignal: syscall.SIGKILL, Args: []string{
			"--etcd-servers=http://" + k.etcd.Members[0].Addr, "--bind-address=127.0.0.1", "--advertise-address=127.0.0.1",
			fmt.Sprintf("--secure-port=%d", port), "--cert-dir=" + file("certs"), "--token-auth-file=" + file("tokens"), "--authorization-mode=RBAC",
			"--service-account-key-file=" + file("key"), "--service-account-signing-key-file=" + file("key"),
			"--service-account-issuer=https://kubernetes.default.svc", "--service-cluster-ip-range=10.0.0.0/24", "--endpoint-reconciler-type=none",
		},
	})
	return err
}

// connect waits until the server is ready, and creates an operator's clients.
func (k *realServer) connect(ctx context.Context) error {
	if err := k.proc.Ready(ctx, k.ready); err != nil {
		return err
	}
	var err [3]error
	k.leases, err[0] = coordinationclient.NewForConfigAndClient(k.admin, k.http)
	k.core, err[1] = coreclient.NewForConfigAndClient(k.admin, k.http)
	k.rbac, err[2] = rbacclient.NewForConfigAndClient(k.admin, k.http)
	return errors.Join(err[:]...)
}

func (k *realServer) ready(ctx context.Context) (err error) {
	if k.http == nil {
		certificates, err := os.ReadFile(filepath.Join(k.dir, "certs", "apiserver.crt"))
		if err != nil {
			return err
		}
		k.access.roots = x509.NewCertPool()
		if !k.access.roots.AppendCertsFromPEM(certificates) {
			return errors.New("no certificate so far")
		}
		k.admin = &rest.Config{Host: k.access.URL, QPS: -1, BearerToken: "admin", Transport: k.access.transport()}
		if k.http, err = rest.HTTPClientFor(k.admin); err != nil {
			return err
		}
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, k.access.URL+"/readyz", nil)
	if err != nil {
		return err
	}
	response, err := k.http.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return errors.New(response.Status)
	}
	return nil
}

// allow gives "candidate" the rights that the documentation lists, in every namespace, also in absent ones.
func (k *realServer) allow(ctx context.Context) error {
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "candidate"}, Rules: []rbacv1.PolicyRule{{
		APIGroups: []string{leasesOf.Group}, Resources: []string{leasesOf.Resource}, Verbs: []string{"get", "create", "update"},
	}}}
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "candidate"}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "candidate"},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: "candidate"}},
	}
	_, err := k.rbac.ClusterRoles().Create(ctx, role, metav1.CreateOptions{})
	_, bindErr := k.rbac.ClusterRoleBindings().Create(ctx, binding, metav1.CreateOptions{})
	return errors.Join(err, bindErr)
}

func (k *realServer) close() {
	if k.http != nil {
		k.http.CloseIdleConnections()
	}
	if k.proc != nil {
		k.proc.Kill()
	}
	if k.etcd != nil {
		_ = k.etcd.Close()
	}
	child.Removed(k.dir)
	_ = os.RemoveAll(k.dir)
}

// space creates a namespace for one test.
func (k *realServer) space(t testing.TB) *apiServer {
	t.Helper()
	n := &namespace{t: t, name: strings.ToLower(rand.Text()), own: make(map[string]bool), changed: make(chan struct{})}
	n.leases = k.leases.Leases(n.name)
	space := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: n.name}}
	if _, err := k.core.Namespaces().Create(t.Context(), space, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	list, err := n.leases.List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	seen, err := n.leases.Watch(context.WithoutCancel(t.Context()), metav1.ListOptions{ResourceVersion: list.ResourceVersion})
	if err != nil {
		t.Fatal(err)
	}
	var following sync.WaitGroup
	following.Go(func() { n.follow(seen) })
	t.Cleanup(func() {
		seen.Stop()
		following.Wait()
	})
	return &apiServer{leaseStore: n, URL: k.access.URL, roots: k.access.roots, namespace: n.name}
}

// namespace is the namespace of one test.
type namespace struct {
	t      testing.TB
	name   string
	leases coordinationclient.LeaseInterface

	mu      sync.Mutex
	written []coordinationv1.Lease // every version of each Lease, from the watch
	own     map[string]bool        // the versions that the operator wrote
	changed chan struct{}          // closed, and replaced, at each new version
}

func (n *namespace) follow(seen watch.Interface) {
	for event := range seen.ResultChan() {
		lease, ok := event.Object.(*coordinationv1.Lease)
		if !ok {
			return // the watch was stopped; otherwise history reports it
		}
		if event.Type == watch.Deleted {
			continue
		}
		n.mu.Lock()
		n.written = append(n.written, *lease)
		close(n.changed)
		n.changed = make(chan struct{})
		n.mu.Unlock()
	}
}

// context is for an operator's call, also from a test's cleanups.
func (n *namespace) context() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(n.t.Context()), patience)
}

func (n *namespace) lease(name string) *coordinationv1.Lease {
	ctx, cancel := n.context()
	defer cancel()
	lease, err := n.leases.Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		if !apierrors.IsNotFound(err) {
			n.t.Error(err)
		}
		return nil
	}
	return lease
}

func (n *namespace) put(name string, annotations map[string]string) {
	n.create(&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: annotations}})
}

func (n *namespace) create(lease *coordinationv1.Lease) (version string) {
	ctx, cancel := n.context()
	defer cancel()
	lease, err := n.leases.Create(ctx, lease, metav1.CreateOptions{})
	return n.wrote(lease, err)
}

func (n *namespace) give(name, holder string) {
	ctx, cancel := n.context()
	defer cancel()
	for {
		lease := n.lease(name)
		lease.Spec.HolderIdentity = &holder
		lease, err := n.leases.Update(ctx, lease, metav1.UpdateOptions{})
		if !apierrors.IsConflict(err) { // a candidate was faster: try again
			n.wrote(lease, err)
			return
		}
	}
}

// wrote records a version that the operator wrote.
func (n *namespace) wrote(lease *coordinationv1.Lease, err error) (version string) {
	if err != nil {
		n.t.Error(err)
		return ""
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.own[lease.ResourceVersion] = true
	return lease.ResourceVersion
}

func (n *namespace) remove(name string) {
	ctx, cancel := n.context()
	defer cancel()
	if err := n.leases.Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
		n.t.Error(err)
	}
}

// history writes a marker Lease and waits until the watch reports it.
func (n *namespace) history() []coordinationv1.Lease {
	mark := n.create(&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{GenerateName: "mark-"}})
	patient := time.NewTimer(patience)
	defer patient.Stop()
	for {
		n.mu.Lock()
		all, changed := slices.Clone(n.written), n.changed
		n.mu.Unlock()
		isMark := func(lease coordinationv1.Lease) bool { return lease.ResourceVersion == mark }
		if mark == "" || slices.ContainsFunc(all, isMark) {
			return slices.DeleteFunc(all, n.isOwn)
		}
		select {
		case <-changed:
		case <-patient.C:
			n.t.Error("the watch does not tell of what was written")
			return nil
		}
	}
}

func (n *namespace) isOwn(lease coordinationv1.Lease) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.own[lease.ResourceVersion]
}
