package credentials

import (
	"crypto/hkdf"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"

	"github.com/fencegate/fencegate/fence"
)

// Keyring makes and verifies temporary credentials. All replicas of a gateway share its master keys; it keeps no other
// state. To rotate, add a key, make it current everywhere, and drop the old one when the credentials made with it have
// expired. Safe for concurrent use. Printing it shows no key.
type Keyring struct {
	current string
	keys    map[string]sessionKeys
	cache   tokenCache
}

// sessionKeys are derived from one master key, one per purpose.
type sessionKeys struct{ mac, secret, print []byte }

// fingerprintBytes are enough to distinguish the keys of a group.
const fingerprintBytes = 8

const (
	minMasterKey = 32 // bytes
	maxKeyID     = 32 // characters
)

// NewKeyring creates a keyring from master keys by key id. It makes new credentials with the current one. A key has at
// least 32 bytes, an id 1 to 32 letters, digits, '-' or '_'. The error is a [*fence.InvalidError] and shows no key.
func NewKeyring(current string, masters map[string][]byte) (*Keyring, error) {
	if _, known := masters[current]; !known {
		return nil, &fence.InvalidError{Field: "keyring", Reason: fmt.Sprintf("has no key %q to make the current one", current)}
	}
	k := &Keyring{current: current, keys: make(map[string]sessionKeys, len(masters))}
	for id, master := range maps.All(masters) {
		if !validKeyID(id) {
			return nil, &fence.InvalidError{Field: "keyring", Reason: fmt.Sprintf("has a key id %q; ids have 1 to %d letters, digits, '-' or '_'", id, maxKeyID)}
		}
		if len(master) < minMasterKey {
			return nil, &fence.InvalidError{Field: "keyring", Reason: fmt.Sprintf("has a key %q of %d bytes; at least %d are needed", id, len(master), minMasterKey)}
		}
		mac, err := hkdf.Key(sha256.New, master, nil, "fencegate s3 session token", sha256.Size)
		if err != nil {
			return nil, fmt.Errorf("derive from master key %q: %w", id, err)
		}
		secret, err := hkdf.Key(sha256.New, master, nil, "fencegate s3 secret access key", sha256.Size)
		if err != nil {
			return nil, fmt.Errorf("derive from master key %q: %w", id, err)
		}
		mark, err := hkdf.Key(sha256.New, master, nil, "fencegate master key fingerprint", fingerprintBytes)
		if err != nil {
			return nil, fmt.Errorf("derive from master key %q: %w", id, err)
		}
		k.keys[id] = sessionKeys{mac: mac, secret: secret, print: mark}
	}
	return k, nil
}

// Fingerprints yields the id and fingerprint of each key, the current key first. HKDF derives the fingerprint for a
// purpose of its own, so it reveals neither the master key nor another derived key.
func (k *Keyring) Fingerprints() iter.Seq2[string, string] {
	ids := slices.DeleteFunc(slices.Sorted(maps.Keys(k.keys)), func(id string) bool { return id == k.current })
	ids = slices.Insert(ids, 0, k.current)
	return func(yield func(string, string) bool) {
		for _, id := range ids {
			if !yield(id, hex.EncodeToString(k.keys[id].print)) {
				return
			}
		}
	}
}

// ParseKeyring is [NewKeyring] of [ParseMasterKeys].
func ParseKeyring(text string) (*Keyring, error) {
	current, masters, err := ParseMasterKeys(text)
	if err != nil {
		return nil, err
	}
	return NewKeyring(current, masters)
}

// ParseMasterKeys parses "id:hex" pairs separated by commas or white space; the first is the current key. The error is
// a [*fence.InvalidError] and shows no key.
func ParseMasterKeys(text string) (current string, masters map[string][]byte, err error) {
	masters = map[string][]byte{}
	for pair := range strings.FieldsFuncSeq(text, func(r rune) bool { return r == ',' || r == ' ' || r == '\n' || r == '\t' || r == '\r' }) {
		id, digits, found := strings.Cut(pair, ":")
		if !found {
			return "", nil, &fence.InvalidError{Field: "keyring", Reason: "has an entry that is not id:hex"}
		}
		key, err := hex.DecodeString(digits)
		if err != nil {
			return "", nil, &fence.InvalidError{Field: "keyring", Reason: fmt.Sprintf("has a key %q that is not hexadecimal", id)}
		}
		if _, twice := masters[id]; twice {
			return "", nil, &fence.InvalidError{Field: "keyring", Reason: fmt.Sprintf("has key %q twice", id)}
		}
		if current == "" {
			current = id
		}
		masters[id] = key
	}
	if current == "" {
		return "", nil, &fence.InvalidError{Field: "keyring", Reason: "is empty"}
	}
	return current, masters, nil
}

func validKeyID(id string) bool {
	for i := range len(id) {
		c := id[i]
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '-' && c != '_' {
			return false
		}
	}
	return id != "" && len(id) <= maxKeyID
}

// String shows no key.
func (k *Keyring) String() string { return fmt.Sprintf("keyring of %d keys", len(k.keys)) }

// GoString shows no key.
func (k *Keyring) GoString() string { return "credentials." + k.String() }
