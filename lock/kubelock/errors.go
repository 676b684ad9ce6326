package kubelock

import (
	"errors"
	"fmt"
	"net/http"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/fencegate/fencegate/fence/leasing"
)

var (
	// ErrNotLeading reports that a [Lock] has no grant, because it has not taken the Lease yet.
	ErrNotLeading = errors.New("not the leader so far")

	errReleased   = errors.New("it was released")
	errNotRenewed = errors.New("it was not renewed in time")
	errNoAnswer   = errors.New("no answer in time") // the cause of a request that timed out
)

// unavailable says why the Lease could not be taken from Kubernetes.
func unavailable(lease types.NamespacedName, err error) error {
	return &leasing.UnavailableError{Part: "kubernetes", Cause: &failedError{lease, err}}
}

// failedError is an error of the API server, with the remedy for one that does not pass by itself.
type failedError struct {
	lease types.NamespacedName
	err   error
}

func (e *failedError) Error() string {
	text := fmt.Sprintf("lease %v: %s", e.lease, strings.ReplaceAll(e.err.Error(), "\n", " "))
	switch {
	case apierrors.IsForbidden(e.err):
		text += "; allow get, create and update on leases of coordination.k8s.io in the namespace"
	case apierrors.IsUnauthorized(e.err):
		text += "; check the credentials of the client"
	case isNoServer(e.err):
		text += "; is this the API server of Kubernetes 1.14 or later?"
	}
	return text
}

func (e *failedError) Unwrap() error { return e.err }

// TokenError reports that the Lease's annotation holds no token. Nothing was changed.
type TokenError struct {
	Lease types.NamespacedName
	Text  string // the annotation's value
}

func (e *TokenError) Error() string {
	return fmt.Sprintf("lease %v: the annotation %s holds %q, which is no token below the highest: "+
		"remove it, and the next leader's token is above what the fence records", e.Lease, Annotation, e.Text)
}

// Is matches [leasing.ErrUnavailable].
func (e *TokenError) Is(target error) bool { return target == leasing.ErrUnavailable }

// isNoServer reports whether the 404 names no object, so that the server is no Kubernetes API server with Leases.
func isNoServer(err error) bool {
	return apierrors.IsNotFound(err) && apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse)
}

// isMissing reports whether the API server answered that the object does not exist.
func isMissing(err error) bool { return apierrors.IsNotFound(err) && !isNoServer(err) }

// isLasting reports whether an error lasts until an operator corrects it.
func isLasting(err error) bool {
	if _, ok := errors.AsType[*TokenError](err); ok {
		return true
	}
	return apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) || apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) ||
		apierrors.IsNotFound(err) || apierrors.IsMethodNotSupported(err)
}

// isRefusal reports whether the API server answered that it changed nothing. After any other error, such as a time-out
// of its etcd, it may have carried out the request.
func isRefusal(err error) bool {
	refused, ok := errors.AsType[*apierrors.StatusError](err)
	return ok && refused.ErrStatus.Code >= http.StatusBadRequest && refused.ErrStatus.Code < http.StatusInternalServerError
}
