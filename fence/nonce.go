package fence

import (
	"crypto/sha256"
	"errors"
	"fmt"
)

// ErrSpent: the nonce held the resource before, and another arming or a revocation followed. Nothing was armed. The
// process may still hold data that it read then: end it, and start again with a new nonce.
var ErrSpent = errors.New("nonce is spent")

// SpentError says that a process run asked again for a resource that was armed by another since it held it.
type SpentError struct {
	Resource string
	Armed    Token // the last one that this nonce armed
	Recorded Token // the token that the fence records; 0: it has no fence any more
}

func (e *SpentError) Error() string {
	if e.Recorded == 0 {
		return fmt.Sprintf("nonce is spent: it held %q with token %d, and the fence is gone", e.Resource, e.Armed)
	}
	return fmt.Sprintf("nonce is spent: it held %q with token %d, and the fence stands at %d", e.Resource, e.Armed, e.Recorded)
}

// Is matches [ErrSpent].
func (e *SpentError) Is(target error) bool { return target == ErrSpent }

// Lengths of a nonce, in bytes.
const (
	MinNonceBytes = 16
	MaxNonceBytes = 128
)

// NonceHash is the SHA-256 of a nonce: a text that identifies one run of a process, such as a UUID created at its
// start. The fence stores only the hash. The error is an [*InvalidError].
func NonceHash(nonce string) ([]byte, error) {
	if n := len(nonce); n < MinNonceBytes || n > MaxNonceBytes {
		return nil, &InvalidError{Field: "nonce", Reason: fmt.Sprintf("is %d bytes long; %d to %d are allowed, such as a UUID's 36", n, MinNonceBytes, MaxNonceBytes)}
	}
	for _, c := range []byte(nonce) {
		if c <= ' ' || c > '~' {
			return nil, &InvalidError{Field: "nonce", Reason: "has other characters than ASCII's visible ones"}
		}
	}
	sum := sha256.Sum256([]byte(nonce))
	return sum[:], nil
}

// NonceRecord is what the fence records of a nonce and a resource.
type NonceRecord struct {
	Armed    Token // the last token that this nonce armed; 0: none
	Recorded Token // the token that the fence records; 0: it has no fence
	Ended    bool  // the recorded grant's lease was released
}

// Spent reports whether the fence refuses to arm with this nonce.
func (r NonceRecord) Spent() bool { return r.Armed != 0 && r.Armed != r.Recorded }

// Holds reports whether the recorded grant was armed with this nonce and has not been released.
func (r NonceRecord) Holds() bool { return r.Armed != 0 && r.Armed == r.Recorded && !r.Ended }
