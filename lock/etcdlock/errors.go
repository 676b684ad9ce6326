package etcdlock

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/status"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/leasing"
)

// errNoAnswer is the cause of a call that timed out.
var errNoAnswer = fmt.Errorf("no answer within %v", callTimeout)

// explain adds to the error of a call without an answer whether there was a connection. The client does not report it.
func explain(ctx context.Context, client *clientv3.Client, err error) error {
	if err == nil || context.Cause(ctx) != errNoAnswer { //nolint:errorlint // the cause is this very value
		return err
	}
	if client.ActiveConnection().GetState() != connectivity.Ready {
		return fmt.Errorf("%w: no connection to %s", errNoAnswer, strings.Join(client.Endpoints(), ", "))
	}
	return errNoAnswer
}

// unavailable says why etcd gives no lease.
func unavailable(doing string, err error) error {
	return &leasing.UnavailableError{Part: "etcd", Cause: &failedError{doing, err}}
}

// failedError is an error of etcd, with the remedy for one that does not pass by itself.
type failedError struct {
	doing string
	err   error
}

func (e *failedError) Error() string {
	text := e.doing + ": " + strings.ReplaceAll(describe(e.err), "\n", " ")
	if advice := advice(e.err); advice != "" {
		text += "; " + advice
	}
	return text
}

func (e *failedError) Unwrap() error { return e.err }

// describe returns an error's text without gRPC's wrapping.
func describe(err error) string {
	if s, ok := status.FromError(err); ok && s.Code() != codes.OK {
		return strings.TrimPrefix(s.Message(), "etcdserver: ")
	}
	return strings.TrimPrefix(err.Error(), "etcdserver: ")
}

// failure classifies an error of etcd: the context's own, or a [*leasing.UnavailableError].
func failure(ctx context.Context, doing string, err error) error {
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return fmt.Errorf("%s: %w", doing, context.Cause(ctx))
	case errors.Is(err, leasing.ErrHeld), errors.Is(err, leasing.ErrLost), errors.Is(err, leasing.ErrUnavailable), errors.Is(err, fence.ErrInvalid):
		return err
	}
	return unavailable(doing, err)
}

// kind returns an error's code. clientv3 reports it in two ways.
func kind(err error) codes.Code {
	if e, ok := errors.AsType[rpctypes.EtcdError](err); ok {
		return e.Code()
	}
	return status.Code(err)
}

// advice returns the remedy for an error that does not pass by itself.
func advice(err error) string {
	switch {
	case is(err, rpctypes.ErrPermissionDenied):
		return "grant the user readwrite on the prefix"
	case is(err, rpctypes.ErrUserEmpty), is(err, rpctypes.ErrAuthFailed), is(err, rpctypes.ErrInvalidAuthToken):
		return "check the user name and the password of the client"
	case is(err, rpctypes.ErrNoSpace):
		return "compact and defragment etcd, then disarm the alarm: etcdctl alarm disarm"
	case kind(err) == codes.Unimplemented:
		return "etcd 3.4 or later is needed"
	}
	return ""
}

// is compares errors by their text, since only the text crosses the wire.
func is(err, want error) bool {
	return err != nil && rpctypes.ErrorDesc(cause(err)) == rpctypes.ErrorDesc(want)
}

// mayPass reports whether waiting helps: a leader is elected, or a
// server comes back. The client renews an expired token by itself.
func mayPass(err error) bool {
	if errors.Is(err, errNoAnswer) || errors.Is(err, context.DeadlineExceeded) || is(err, rpctypes.ErrInvalidAuthToken) || is(err, rpctypes.ErrAuthOldRevision) {
		return true
	}
	if errors.Is(err, clientv3.ErrNoAvailableEndpoints) {
		return true
	}
	switch kind(cause(err)) {
	case codes.Unavailable, codes.DeadlineExceeded, codes.Aborted:
		return true
	default:
		return false
	}
}

func cause(err error) error {
	if e, ok := errors.AsType[*failedError](err); ok {
		return e.err
	}
	return err
}
