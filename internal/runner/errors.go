package runner

import (
	"crypto/tls"
	"errors"
	"net/http"
	"strings"

	"github.com/fencegate/fencegate/client"
	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/wire"
)

// ErrLate reports that the command was not started, because the lease had no time left.
var ErrLate = errors.New("no time is left of the lease to run the command")

// Why returns the cause of a loss, without the prefix that the lease is lost.
func Why(lost error) string {
	text := lost.Error()
	if text == leasing.ErrLost.Error() {
		return "the gateway does not say why"
	}
	return strings.TrimPrefix(text, leasing.ErrLost.Error()+": ")
}

// Refused describes what happens to the writes of a command whose lease is lost.
func Refused(lost error) string {
	if p, ok := errors.AsType[*client.Problem](lost); ok && p.Recorded != nil {
		return "the fence refuses its writes since then"
	}
	return "its writes are refused once another holds the resource"
}

// lost reports whether err means for certain that the lease is over.
func lost(err error) bool {
	var p *client.Problem
	return errors.As(err, &p) && p.Code == wire.CodeLeaseLost
}

// ErrSkipped reports that the command was not started because another holds the resource.
var ErrSkipped = errors.New("skipped")

func isHeld(err error) bool {
	p, ok := errors.AsType[*client.Problem](err)
	return ok && p.Code == wire.CodeHeld
}

func isUnavailable(err error) bool {
	p, ok := errors.AsType[*client.Problem](err)
	return ok && p.Code == wire.CodeUnavailable
}

// Retryable reports whether a failure before the command's start may pass by itself: the gateway, or a service that it
// needs, is unavailable or was too slow for the lease's TTL.
func Retryable(err error) bool {
	if lost(err) || errors.Is(err, ErrLate) {
		return true
	}
	if p, ok := errors.AsType[*client.Problem](err); ok {
		switch p.Status {
		case http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout, http.StatusTooManyRequests:
			return true
		}
		return false
	}
	if _, silent := errors.AsType[*client.UnreachableError](err); !silent {
		return false
	}
	_, untrusted := errors.AsType[*tls.CertificateVerificationError](err)
	_, plain := errors.AsType[tls.RecordHeaderError](err)
	return !untrusted && !plain && !errors.Is(err, http.ErrSchemeMismatch)
}
