package fence

import (
	"errors"
	"fmt"
)

// ErrNotEnded: a grant could not be ended. It stays current until the next acquisition.
var ErrNotEnded = errors.New("grant was not ended")

// Ending is a request to end a grant, as the first step of releasing its lease.
type Ending struct {
	Resource string
	Token    Token
	SealHash []byte // SHA-256 of the grant's seal; nil matches any seal of the token
}

// Validate reports whether the request is well formed. The error is an [*InvalidError].
func (e Ending) Validate() error {
	return Arming{Resource: e.Resource, Token: e.Token, SealHash: e.SealHash}.Validate()
}

// NotEndedError says that other transactions kept changing the fence of a resource until the call timed out, usually
// a raise, which ends the grant as well. Nothing was changed.
type NotEndedError struct {
	Resource string
	Token    Token
}

func (e *NotEndedError) Error() string {
	return fmt.Sprintf("grant %d of %q was not ended: another transaction is still changing its fence", e.Token, e.Resource)
}

// Is matches [ErrNotEnded].
func (e *NotEndedError) Is(target error) bool { return target == ErrNotEnded }
