package access_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencegate/fencegate/gateway/access"
)

// identity is a verifier that knows only the token "token".
type identity access.Identity

func (i identity) Verify(_ context.Context, token string) (access.Identity, error) {
	if token != "token" {
		return access.Identity{}, access.ErrUnknown
	}
	return access.Identity(i), nil
}

func claimed(sub string, more ...access.Claims) access.Definition {
	return access.Definition{
		Name: sub, Rules: []access.Rule{rule("*", access.Acquire)},
		Issued: append([]access.Claims{{Issuer: "idp", Equal: map[string]string{"sub": sub, "groups": "jobs"}}}, more...),
	}
}

func TestATokenIsWhoseEveryClaimItHas(t *testing.T) {
	t.Parallel()
	other := access.Claims{Issuer: "idp", Equal: map[string]string{"groups": "staff"}}
	fits := identity{Issuer: "idp", Claims: map[string][]string{"sub": {"nightly"}, "groups": {"staff", "jobs"}}, Expires: time.Now().Add(time.Hour)}
	for name, c := range map[string]struct {
		token string
		who   identity
		all   []access.Definition
		want  string
	}{
		"all claims":          {"token", fits, []access.Definition{claimed("hourly"), claimed("nightly")}, "nightly"},
		"another's claims":    {"token", fits, []access.Definition{claimed("hourly")}, ""},
		"two fit":             {"token", fits, []access.Definition{claimed("hourly", other), claimed("nightly")}, ""},
		"another issuer":      {"token", identity{Issuer: "idq", Claims: fits.Claims, Expires: fits.Expires}, []access.Definition{claimed("nightly")}, ""},
		"a claim is missing":  {"token", identity{Issuer: "idp", Claims: map[string][]string{"sub": {"nightly"}}, Expires: fits.Expires}, []access.Definition{claimed("nightly")}, ""},
		"expired":             {"token", identity{Issuer: "idp", Claims: fits.Claims, Expires: time.Now()}, []access.Definition{claimed("nightly")}, ""},
		"a token that is not": {"tokens", fits, []access.Definition{claimed("nightly")}, ""},
	} {
		ps, err := access.New(c.all, access.VerifiedBy(c.who))
		if err != nil {
			t.Fatal(err)
		}
		p, err := ps.Authenticate(t.Context(), c.token)
		if p.Name() != c.want || (err == nil) != (c.want != "") || err != nil && !errors.Is(err, access.ErrUnknown) || p.May(access.Acquire, "a") != (c.want != "") {
			t.Errorf("%s: %q, %v", name, p.Name(), err)
		}
	}
}

func TestRightsEndWithTheTokenAndWithItsMapping(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		who := identity{Issuer: "idp", Claims: map[string][]string{"sub": {"nightly"}, "groups": {"jobs"}}, Expires: time.Now().Add(time.Hour)}
		ps, err := access.New([]access.Definition{claimed("nightly")}, access.VerifiedBy(who))
		if err != nil {
			t.Fatal(err)
		}
		p, err := ps.Authenticate(t.Context(), "token")
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := p.Lasts(t.Context())
		defer cancel()
		time.Sleep(time.Hour - 1)
		if !p.May(access.Acquire, "a") || ctx.Err() != nil {
			t.Errorf("before its end: %v", ctx.Err())
		}
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		if ctx.Err() == nil {
			t.Error("what the token opened goes on")
		}
		if err := p.Check(access.Acquire, "a"); err == nil || err.Error() != "the token of nightly has expired" || p.MaySome(access.Acquire) {
			t.Errorf("behind its end: %v", err)
		}

		who.Expires = time.Now().Add(time.Hour)
		if _, err := ps.Replace([]access.Definition{claimed("nightly")}, access.VerifiedBy(who)); err != nil {
			t.Fatal(err)
		}
		if p, err = ps.Authenticate(t.Context(), "token"); err != nil {
			t.Fatal(err)
		}
		renamed := claimed("nightly")
		renamed.Issued[0].Equal = map[string]string{"sub": "nightly", "groups": "admins"}
		if _, err := ps.Replace([]access.Definition{renamed}, access.VerifiedBy(who)); err != nil {
			t.Fatal(err)
		}
		if p.May(access.Acquire, "a") || !ended(p) {
			t.Error("a token that is nobody's any more has rights")
		}
		if _, err := ps.Replace([]access.Definition{renamed}); err == nil {
			t.Error("tokens that nobody verifies were accepted")
		}
	})
}

// during is a verifier that calls a function while it verifies.
type during struct {
	identity
	do func()
}

func (d during) Verify(ctx context.Context, token string) (access.Identity, error) {
	d.do()
	return d.identity.Verify(ctx, token)
}

// A token that is being verified while its verifier loses its trust is verified again.
func TestWhatAReplacedVerifierAcceptsIsVerifiedAgain(t *testing.T) {
	t.Parallel()
	who := identity{Issuer: "idp", Claims: map[string][]string{"sub": {"nightly"}, "groups": {"jobs"}}, Expires: time.Now().Add(time.Hour)}
	stranger := who
	stranger.Claims = map[string][]string{"sub": {"another"}}
	all := []access.Definition{claimed("nightly")}
	for name, c := range map[string]struct {
		next identity
		want bool
	}{"the next accepts it": {who, true}, "the next refuses it": {stranger, false}} {
		var ps *access.Principals
		ps, err := access.New(all, access.VerifiedBy(during{who, func() {
			if _, err := ps.Replace(all, access.VerifiedBy(c.next)); err != nil {
				t.Error(err)
			}
		}}))
		if err != nil {
			t.Fatal(err)
		}
		p, err := ps.Authenticate(t.Context(), "token")
		if (err == nil) != c.want || err != nil && !errors.Is(err, access.ErrUnknown) || p.May(access.Acquire, "a") != c.want {
			t.Errorf("%s: %v, may acquire: %t", name, err, p.May(access.Acquire, "a"))
		}
	}
}
