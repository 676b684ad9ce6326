package credentials

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base32"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/fencegate/fencegate/fence"
)

// Credentials are temporary S3 credentials that carry a grant's resource and
// token. They go into AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and
// AWS_SESSION_TOKEN.
type Credentials struct {
	AccessKeyID     string
	SecretAccessKey string // secret: keep it out of logs, errors and process lists
	SessionToken    string // not secret by itself: presigned URLs contain it
	Expires         time.Time
}

// String shows no secret.
func (c Credentials) String() string { return "credentials " + c.AccessKeyID }

// GoString shows no secret.
func (c Credentials) GoString() string { return "credentials." + c.String() }

// Errors of session tokens.
var (
	ErrForged  = errors.New("session token was not issued here")
	ErrExpired = errors.New("session token has expired")
)

// A session token is base64url of: format 2, length of the key id, key id, terms, expiry in Unix milliseconds, fencing
// token, resource; then HMAC-SHA256 of all that. Format 3 adds the length of the principal's name, and the name, after
// the terms. Format 1, from an earlier release, has no terms and an expiry in seconds: it writes while the lease is
// held.
const (
	namedFormat    = 3
	sessionFormat  = 2
	earlierFormat  = 1
	sessionNumbers = 16
	accessDigits   = 16
)

// Terms limit credentials. They can be combined. Without any, credentials write under their grant and read everything,
// until they expire.
type Terms uint8

// The terms of credentials.
const (
	WhileHeld Terms = 1 << iota // they write only while the lease is held, because they expire after its deadline
	OwnKeys                     // they read only keys of their resource
	ReadOnly                    // they only read
	EndHeld                     // they do not read either once the lease is over
)

// Has reports whether the terms include t.
func (t Terms) Has(one Terms) bool { return t&one != 0 }

// AccessPrefix begins every temporary access key; SDKs expect it.
const AccessPrefix = "ASIA"

// Issue makes the credentials of a grant. They authorize nothing by themselves: each write still needs the token to be
// the recorded one. They cannot be used after expires, which is truncated to milliseconds. The error is a
// [*fence.InvalidError].
func (k *Keyring) Issue(resource string, token fence.Token, expires time.Time, terms Terms) (Credentials, error) {
	return k.IssueTo("", resource, token, expires, terms)
}

// IssueTo is Issue for a principal, whose name the session contains; "": none.
func (k *Keyring) IssueTo(principal, resource string, token fence.Token, expires time.Time, terms Terms) (Credentials, error) {
	if len(principal) > math.MaxUint8 {
		return Credentials{}, &fence.InvalidError{Field: "principal", Reason: "has a name of more than 255 bytes"}
	}
	if err := fence.ValidateResource(resource); err != nil {
		return Credentials{}, err
	}
	if token <= 0 {
		return Credentials{}, &fence.InvalidError{Field: "token", Reason: "is not positive"}
	}
	expires = expires.Truncate(time.Millisecond)
	payload := append([]byte{sessionFormat, byte(len(k.current))}, k.current...)
	payload = append(payload, byte(terms))
	if principal != "" {
		payload[0] = namedFormat
		payload = append(append(payload, byte(len(principal))), principal...)
	}
	payload = binary.BigEndian.AppendUint64(payload, uint64(expires.UnixMilli()))
	payload = binary.BigEndian.AppendUint64(payload, uint64(token))
	payload = append(payload, resource...)
	keys := k.keys[k.current]
	text := base64.RawURLEncoding.EncodeToString(append(payload, hmacOf(keys.mac, payload)...))
	access := accessKeyOf(text)
	return Credentials{AccessKeyID: access, SecretAccessKey: keys.secretOf(access, text), SessionToken: text, Expires: expires}, nil
}

// Open authenticates a session token, without checking its expiry. The error is [ErrForged].
func (k *Keyring) Open(text string) (Session, error) {
	if t := k.cache.get(text); t != nil {
		return t.session, nil
	}
	s, _, err := k.open(text)
	return s, err
}

// open is Open. It also returns the keys with which the token was made.
func (k *Keyring) open(text string) (Session, sessionKeys, error) {
	raw, err := base64.RawURLEncoding.Strict().DecodeString(text)
	if err != nil || len(raw) < 2+sessionNumbers+sha256.Size || raw[0] < earlierFormat || raw[0] > namedFormat {
		return Session{}, sessionKeys{}, ErrForged
	}
	payload, mac := raw[:len(raw)-sha256.Size], raw[len(raw)-sha256.Size:]
	idLength := int(payload[1])
	if len(payload) < 2+idLength+sessionNumbers {
		return Session{}, sessionKeys{}, ErrForged
	}
	keys, known := k.keys[string(payload[2:2+idLength])]
	if !known || !hmac.Equal(mac, hmacOf(keys.mac, payload)) {
		return Session{}, sessionKeys{}, ErrForged
	}
	s, whole := readSession(raw[0], payload[2+idLength:])
	if !whole {
		return Session{}, sessionKeys{}, ErrForged
	}
	return s, keys, nil
}

// readSession parses what follows the key id. It returns false if that is too short.
func readSession(format byte, body []byte) (s Session, whole bool) {
	s.Terms = WhileHeld
	if format != earlierFormat {
		if len(body) == 0 {
			return s, false
		}
		s.Terms, body = Terms(body[0]), body[1:]
	}
	if format == namedFormat {
		if len(body) == 0 || len(body)-1 < int(body[0]) {
			return s, false
		}
		end := 1 + int(body[0])
		s.Principal, body = string(body[1:end]), body[end:]
	}
	if len(body) < sessionNumbers {
		return s, false
	}
	expires := int64(binary.BigEndian.Uint64(body))
	s.Expires = time.UnixMilli(expires)
	if format == earlierFormat {
		s.Expires = time.Unix(expires, 0)
	}
	s.Token, s.Resource = fence.Token(binary.BigEndian.Uint64(body[8:])), string(body[sessionNumbers:])
	return s, true
}

// Verify authenticates a request's access key and session token. The result holds the secret that must sign the
// request. The error is [ErrForged] or [ErrExpired].
func (k *Keyring) Verify(access, text string, now time.Time) (*Verified, error) {
	t := k.cache.get(text)
	if t == nil {
		s, keys, err := k.open(text)
		if err != nil {
			return nil, err
		}
		own := accessKeyOf(text)
		t = &Verified{session: s, access: own, secret: keys.secretOf(own, text)}
		k.cache.put(text, t)
	}
	if access != t.access {
		return nil, ErrForged
	}
	if !now.Before(t.session.Expires) {
		return nil, fmt.Errorf("%w at %s", ErrExpired, t.session.Expires.UTC().Format(time.RFC3339))
	}
	return t, nil
}

func accessKeyOf(sessionToken string) string {
	sum := sha256.Sum256([]byte(sessionToken))
	return AccessPrefix + base32.StdEncoding.EncodeToString(sum[:])[:accessDigits]
}

// secretOf also binds the secret to the whole session token: the access key is only 80 bits of its hash.
func (k sessionKeys) secretOf(access, sessionToken string) string {
	return base64.RawURLEncoding.EncodeToString(hmacOf(k.secret, []byte(access+"\x00"+sessionToken)))
}
