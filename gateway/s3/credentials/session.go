package credentials

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base32"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/fencegate/fencegate/fence"
)

// Credentials are temporary S3 credentials that carry a grant's resource and
// token. They go into AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and
// AWS_SESSION_TOKEN.
type Credentials struct {
	AccessKeyID     string
	SecretAccessKey string // secret: keep it out of logs, errors and process lists
	SessionToken    string // no secret by itself: presigned URLs carry it
	Expires         time.Time
}

// String shows no secret.
func (c Credentials) String() string { return "credentials " + c.AccessKeyID }

// GoString shows no secret.
func (c Credentials) GoString() string { return "credentials." + c.String() }

// What is wrong with a session token.
var (
	ErrForged  = errors.New("session token was not issued here")
	ErrExpired = errors.New("session token has expired")
)

// A session token is base64url of: format 1, length of the key id, key id,
// expiry in Unix seconds, fencing token, resource; then HMAC-SHA256 of all that.
const (
	sessionFormat  = 1
	sessionNumbers = 16
	accessDigits   = 16
)

// AccessPrefix begins every temporary access key: SDKs expect it.
const AccessPrefix = "ASIA"

// Issue makes the credentials of a grant. They open nothing by themselves: each
// write still has to find the token recorded as the newest. Expires bounds how
// long they can be used at all; it is cut to seconds. The error is a
// [*fence.InvalidError].
func (k *Keyring) Issue(resource string, token fence.Token, expires time.Time) (Credentials, error) {
	if err := fence.ValidateResource(resource); err != nil {
		return Credentials{}, err
	}
	if token <= 0 {
		return Credentials{}, &fence.InvalidError{Field: "token", Reason: "is not positive"}
	}
	expires = expires.Truncate(time.Second)
	payload := append([]byte{sessionFormat, byte(len(k.current))}, k.current...)
	payload = binary.BigEndian.AppendUint64(payload, uint64(expires.Unix()))
	payload = binary.BigEndian.AppendUint64(payload, uint64(token))
	payload = append(payload, resource...)
	keys := k.keys[k.current]
	text := base64.RawURLEncoding.EncodeToString(append(payload, keyed(keys.mac, payload)...))
	access := accessKeyOf(text)
	return Credentials{AccessKeyID: access, SecretAccessKey: keys.secretOf(access, text), SessionToken: text, Expires: expires}, nil
}

// Open authenticates a session token, without looking at the time. The error is [ErrForged].
func (k *Keyring) Open(text string) (Session, error) {
	s, _, err := k.open(text)
	return s, err
}

// open is Open, with the keys that the token was made with.
func (k *Keyring) open(text string) (Session, sessionKeys, error) {
	raw, err := base64.RawURLEncoding.Strict().DecodeString(text)
	if err != nil || len(raw) < 2+sessionNumbers+sha256.Size || raw[0] != sessionFormat {
		return Session{}, sessionKeys{}, ErrForged
	}
	payload, mac := raw[:len(raw)-sha256.Size], raw[len(raw)-sha256.Size:]
	idLength := int(payload[1])
	if len(payload) < 2+idLength+sessionNumbers {
		return Session{}, sessionKeys{}, ErrForged
	}
	keys, known := k.keys[string(payload[2:2+idLength])]
	if !known || !hmac.Equal(mac, keyed(keys.mac, payload)) {
		return Session{}, sessionKeys{}, ErrForged
	}
	body := payload[2+idLength:]
	return Session{
		Expires:  time.Unix(int64(binary.BigEndian.Uint64(body)), 0),
		Token:    fence.Token(binary.BigEndian.Uint64(body[8:])),
		Resource: string(body[sessionNumbers:]),
	}, keys, nil
}

// Verify authenticates the pair that a request presents. What it returns holds
// the secret that the request must be signed with. The error is [ErrForged] or [ErrExpired].
func (k *Keyring) Verify(access, text string, now time.Time) (*Verified, error) {
	t := k.seen.get(text)
	if t == nil {
		s, keys, err := k.open(text)
		if err != nil {
			return nil, err
		}
		own := accessKeyOf(text)
		t = &Verified{session: s, access: own, secret: keys.secretOf(own, text)}
		k.seen.put(text, t)
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

// secretOf binds the secret to the whole session token too: the access key is
// only 80 bits of its hash.
func (k sessionKeys) secretOf(access, sessionToken string) string {
	return base64.RawURLEncoding.EncodeToString(keyed(k.secret, []byte(access+"\x00"+sessionToken)))
}
