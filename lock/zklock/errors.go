package zklock

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/leasing"
)

// callTimeout bounds one call: a few elections.
const callTimeout = 4 * time.Second

// unimplemented is the client's error text if the server does
// not know the request. The client has no error value for it.
const unimplemented = "unknown error: -6"

// errNoAnswer is the cause of a call that timed out.
var errNoAnswer = fmt.Errorf("no answer within %v", callTimeout)

// UnavailableError says why ZooKeeper gives no lease. It is a [leasing.ErrUnavailable].
type UnavailableError struct {
	Doing string
	Err   error
}

func (e *UnavailableError) Error() string {
	text := e.Doing + ": ZooKeeper: " + strings.TrimPrefix(e.Err.Error(), "zk: ")
	switch {
	case errors.Is(e.Err, zk.ErrNoAuth), errors.Is(e.Err, zk.ErrAuthFailed):
		text += "; check the digest's user and password, or the ACL of the prefix"
	case e.Err.Error() == unimplemented:
		text += "; ZooKeeper 3.5 or later is needed"
	}
	return text
}

// Is matches [leasing.ErrUnavailable].
func (e *UnavailableError) Is(target error) bool { return target == leasing.ErrUnavailable }

// Unwrap returns the cause.
func (e *UnavailableError) Unwrap() error { return e.Err }

// failure classifies an error of ZooKeeper: the context's own, or [UnavailableError].
func failure(ctx context.Context, doing string, err error) error {
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return fmt.Errorf("%s: %w", doing, context.Cause(ctx))
	case errors.Is(err, leasing.ErrHeld), errors.Is(err, leasing.ErrLost), errors.Is(err, leasing.ErrUnavailable), errors.Is(err, fence.ErrInvalid):
		return err
	}
	return &UnavailableError{Doing: doing, Err: err}
}

// mayPass reports whether waiting helps: the client reconnects, or starts a new session.
func mayPass(err error) bool {
	for _, one := range []error{errNoAnswer, zk.ErrConnectionClosed, zk.ErrNoServer, zk.ErrSessionExpired, zk.ErrSessionMoved} {
		if errors.Is(err, one) {
			return true
		}
	}
	return false
}
