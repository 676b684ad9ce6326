package jwt

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-jose/go-jose/v4"
	josejwt "github.com/go-jose/go-jose/v4/jwt"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/gateway/access"
	"github.com/fencegate/fencegate/internal/regular"
)

const (
	maxToken = 8 << 10 // bytes
	leeway   = time.Minute
	logEvery = time.Second
)

// Verifier verifies the tokens of its issuers. Safe for concurrent use.
type Verifier struct {
	issuers    map[string]*issuer
	algorithms []jose.SignatureAlgorithm // of any
	log        *slog.Logger
	now        func() time.Time

	mu         sync.Mutex
	loggedAt   time.Time
	suppressed int
}

var (
	_ access.Verifier  = (*Verifier)(nil)
	_ access.Successor = (*Verifier)(nil)
)

type issuer struct {
	Issuer

	keys   *keys
	inFile []jose.JSONWebKey // the keys, if they are in a file
}

// New creates a Verifier. It reads files and sends no request yet. Refusals are logged with their reason, at most once
// a second, and without the token.
func New(all []Issuer, log *slog.Logger) (*Verifier, error) {
	if len(all) > maxIssuers {
		return nil, &fence.InvalidError{Field: "issuers", Reason: fmt.Sprintf("are %d; at most %d are allowed", len(all), maxIssuers)}
	}
	v := &Verifier{issuers: make(map[string]*issuer, len(all)), log: log, now: time.Now}
	for _, one := range all {
		if err := one.Validate(); err != nil {
			return nil, err
		}
		if v.issuers[one.URL] != nil {
			return nil, &fence.InvalidError{Field: "issuer", Reason: fmt.Sprintf("%q is repeated", one.URL)}
		}
		inFile, err := one.readKeys()
		if err != nil {
			return nil, fmt.Errorf("issuer %q: %w", one.URL, err)
		}
		fetch, err := one.fetch(inFile)
		if err != nil {
			return nil, fmt.Errorf("issuer %q: %w", one.URL, err)
		}
		v.issuers[one.URL] = &issuer{Issuer: one, inFile: inFile, keys: &keys{fetch: fetch, now: time.Now}}
		v.algorithms = append(v.algorithms, one.algorithms()...)
	}
	return v, nil
}

// Succeed takes over the keys that the previous Verifier has from the same addresses, until they are requested again: a
// reload while an issuer's server is away refuses no token. It reports whether every issuer of the previous Verifier is
// unchanged and no key is gone from its file.
func (v *Verifier) Succeed(before access.Verifier) (still bool) {
	old, ok := before.(*Verifier)
	if !ok {
		return false
	}
	for url, i := range v.issuers {
		if same := old.issuers[url]; same != nil && i.Keys != "" && same.Keys == i.Keys {
			i.keys.inherit(same.keys)
		}
	}
	for url, was := range old.issuers {
		if i := v.issuers[url]; i == nil || !i.trusts(was) {
			return false
		}
	}
	return true
}

func (i *issuer) trusts(was *issuer) bool {
	if !reflect.DeepEqual(i.Issuer, was.Issuer) {
		return false
	}
	for _, key := range was.inFile {
		if !slices.ContainsFunc(i.inFile, func(k jose.JSONWebKey) bool { return reflect.DeepEqual(k, key) }) {
			return false
		}
	}
	return true
}

// readKeys reads the keys from their file, if they are in one.
func (i Issuer) readKeys() ([]jose.JSONWebKey, error) {
	if i.KeysFile == "" {
		return nil, nil
	}
	text, err := regular.Read(i.KeysFile, regular.MaxBytes)
	if err != nil {
		return nil, err
	}
	all, err := parseSet(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", i.KeysFile, err)
	}
	return all, nil
}

// fetch returns the function that returns the keys of the file, or requests them.
func (i Issuer) fetch(inFile []jose.JSONWebKey) (func(context.Context) ([]jose.JSONWebKey, error), error) {
	if i.KeysFile != "" {
		return func(context.Context) ([]jose.JSONWebKey, error) { return inFile, nil }, nil
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if i.CA != "" {
		text, err := regular.Read(i.CA, regular.MaxBytes)
		if err != nil {
			return nil, err
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(text) {
			return nil, fmt.Errorf("%s: has no certificate", i.CA)
		}
	}
	client := &http.Client{
		Transport: &http.Transport{TLSClientConfig: config, Proxy: http.ProxyFromEnvironment, DisableKeepAlives: true, ForceAttemptHTTP2: true},
		CheckRedirect: func(r *http.Request, via []*http.Request) error {
			if r.URL.Scheme != "https" || len(via) > 3 {
				return errors.New("keys redirect to an address that is not https, or too often")
			}
			return nil
		},
	}
	return fetchFrom(client, i.Keys), nil
}

// Verify returns the claims of a token. The error is [access.ErrUnknown] if the token does not count, and an
// [*UnavailableError] if the keys of its issuer are unavailable.
func (v *Verifier) Verify(ctx context.Context, token string) (access.Identity, error) {
	if strings.Count(token, ".") != 2 || strings.ContainsAny(token, " \t\r\n") { // not a JWT
		return access.Identity{}, access.ErrUnknown
	}
	identity, err := v.verify(ctx, token)
	if refused, ok := errors.AsType[*refusedError](err); ok {
		v.logRefusal(ctx, refused)
		return access.Identity{}, fmt.Errorf("%w: %w", access.ErrUnknown, refused)
	}
	return identity, err
}

// UnavailableError reports that a token could not be verified.
type UnavailableError struct {
	Issuer string
	Cause  error
}

func (e *UnavailableError) Error() string {
	return fmt.Sprintf("the keys of issuer %q cannot be had: %v", e.Issuer, e.Cause)
}

func (e *UnavailableError) Unwrap() error { return e.Cause }

// Tell returns the error without its cause, which may contain addresses.
func (e *UnavailableError) Tell() string {
	return fmt.Sprintf("the keys of issuer %q cannot be had", e.Issuer)
}

// refusedError says why a token is refused. Of the token it contains only the issuer, if that is configured.
type refusedError struct{ issuer, why string }

func (e *refusedError) Error() string { return e.why }

// logRefusal logs why a token was refused.
func (v *Verifier) logRefusal(ctx context.Context, e *refusedError) {
	v.mu.Lock()
	now := time.Now()
	if now.Sub(v.loggedAt) < logEvery {
		v.suppressed++
		v.mu.Unlock()
		return
	}
	suppressed := v.suppressed
	v.loggedAt, v.suppressed = now, 0
	v.mu.Unlock()
	v.log.InfoContext(ctx, "a JWT was refused", "issuer", e.issuer, "reason", e.why, "suppressed_before", suppressed)
}

func (v *Verifier) verify(ctx context.Context, text string) (access.Identity, error) {
	if len(text) > maxToken {
		return access.Identity{}, &refusedError{"", fmt.Sprintf("it has more than %d bytes", maxToken)}
	}
	token, err := josejwt.ParseSigned(text, v.algorithms)
	if err != nil || len(token.Headers) != 1 {
		return access.Identity{}, &refusedError{"", "it is not a JWT, or its algorithm is not configured"}
	}
	var claims josejwt.Claims
	if err := token.UnsafeClaimsWithoutVerification(&claims); err != nil { // to find the issuer, whose keys verify it
		return access.Identity{}, &refusedError{"", "its claims cannot be read"}
	}
	from := v.issuers[claims.Issuer]
	if from == nil {
		return access.Identity{}, &refusedError{"", "its issuer is not configured"}
	}
	refused := func(why string) (access.Identity, error) {
		return access.Identity{}, &refusedError{from.URL, why}
	}
	head := token.Headers[0]
	if !slices.Contains(from.Algorithms, head.Algorithm) {
		return refused("its algorithm is not configured for its issuer")
	}
	all, err := from.keys.byID(ctx, head.KeyID)
	if err != nil {
		return access.Identity{}, &UnavailableError{from.URL, err}
	}
	var verified josejwt.Claims
	var more map[string]any
	if !slices.ContainsFunc(all, func(k jose.JSONWebKey) bool {
		return (k.Algorithm == "" || k.Algorithm == head.Algorithm) && token.Claims(k.Key, &verified, &more) == nil
	}) {
		return refused("no key of its issuer verifies its signature")
	}
	if why := from.judge(verified, v.now()); why != "" {
		return refused(why)
	}
	return access.Identity{Issuer: from.URL, Claims: texts(more), Expires: verified.Expiry.Time()}, nil
}

// judge returns what is wrong with verified claims; "": nothing.
func (i Issuer) judge(c josejwt.Claims, now time.Time) (why string) {
	switch {
	case c.Issuer != i.URL:
		return "it is from another issuer"
	case !c.Audience.Contains(i.Audience):
		return "it is for another audience"
	case c.Expiry == nil:
		return "it never expires"
	case !now.Before(c.Expiry.Time()):
		return "it has expired"
	case c.NotBefore != nil && c.NotBefore.Time().After(now.Add(leeway)):
		return "it is not valid yet"
	case c.IssuedAt != nil && c.IssuedAt.Time().After(now.Add(leeway)):
		return "it was issued in the future: compare the clocks"
	}
	return ""
}

// texts returns the claims that are a string, or a list of strings.
func texts(claims map[string]any) map[string][]string {
	found := make(map[string][]string, len(claims))
	for name, value := range claims {
		switch value := value.(type) {
		case string:
			found[name] = []string{value}
		case []any:
			for _, one := range value {
				if text, ok := one.(string); ok {
					found[name] = append(found[name], text)
				}
			}
		}
	}
	return found
}
