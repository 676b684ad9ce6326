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

// unavailable says why ZooKeeper gives no lease.
func unavailable(doing string, err error) error {
	return &leasing.UnavailableError{Part: "zookeeper", Cause: &failedError{doing, err}}
}

// failedError is an error of ZooKeeper, with the remedy for one that does not pass by itself.
type failedError struct {
	doing string
	err   error
}

func (e *failedError) Error() string {
	text := e.doing + ": " + strings.TrimPrefix(e.err.Error(), "zk: ")
	switch {
	case errors.Is(e.err, zk.ErrNoAuth), errors.Is(e.err, zk.ErrAuthFailed):
		text += "; check the digest's user and password, or the ACL of the prefix"
	case e.err.Error() == unimplemented:
		text += "; ZooKeeper 3.5 or later is needed"
	}
	return text
}

func (e *failedError) Unwrap() error { return e.err }

// failure classifies an error of ZooKeeper: the context's own, or a [*leasing.UnavailableError].
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

// mayPass reports whether waiting helps: the client reconnects, or starts a new session.
func mayPass(err error) bool {
	for _, one := range []error{errNoAnswer, zk.ErrConnectionClosed, zk.ErrNoServer, zk.ErrSessionExpired, zk.ErrSessionMoved} {
		if errors.Is(err, one) {
			return true
		}
	}
	return false
}
