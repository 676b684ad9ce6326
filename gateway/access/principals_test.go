package access_test

import (
	"context"
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/gateway/access"
)

func rule(resources string, verbs ...access.Verb) access.Rule {
	return access.Rule{Resources: resources, Verbs: verbs}
}

func worker(token string, rules ...access.Rule) access.Definition {
	return access.Definition{Name: "worker", Tokens: []access.Digest{access.DigestOf(token)}, Rules: rules}
}

func made(t *testing.T, all ...access.Definition) *access.Principals {
	t.Helper()
	ps, err := access.New(all)
	if err != nil {
		t.Fatal(err)
	}
	return ps
}

func replaced(t *testing.T, ps *access.Principals, all ...access.Definition) access.Change {
	t.Helper()
	change, err := ps.Replace(all)
	if err != nil {
		t.Fatal(err)
	}
	return change
}

// ended reports, in a bubble, whether a principal's rights have ended or changed.
func ended(p *access.Principal) bool {
	ctx, cancel := p.Lasts(context.Background())
	defer cancel()
	synctest.Wait()
	return ctx.Err() != nil
}

func TestWhatNoRuleAllowsIsRefused(t *testing.T) {
	t.Parallel()
	ps := made(t, worker("t", rule("orders/*", access.Acquire)), access.Definition{Name: "idle", Tokens: []access.Digest{access.DigestOf("i")}})
	p, err := ps.Authenticate(t.Context(), "t")
	if err != nil || p.Name() != "worker" || !p.May(access.Acquire, "orders/1") {
		t.Errorf("the worker: %v, %q", err, p.Name())
	}
	for _, v := range access.Verbs() {
		if v != access.Acquire && p.May(v, "orders/1") || p.May(v, "stock/1") || p.May(v, "") {
			t.Errorf("the worker may %s", v)
		}
	}
	idle, _ := ps.Authenticate(t.Context(), "i")
	stranger, err := ps.Authenticate(t.Context(), "x")
	if !errors.Is(err, access.ErrUnknown) {
		t.Error("a token that nobody has is known")
	}
	for _, nobody := range []*access.Principal{idle, stranger, access.Of(context.Background()), {}} {
		if nobody.May(access.Acquire, "orders/1") || nobody.MaySome(access.Acquire) {
			t.Errorf("%q may acquire", nobody.Name())
		}
	}
	var denied *access.DeniedError
	if err := p.Check(access.Revoke, "orders/1"); !errors.As(err, &denied) || denied.Error() != `worker has no right to revoke "orders/1"` {
		t.Errorf("denied: %v", err)
	}
}

func TestRightsAreThoseOfNow(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ps := made(t, worker("t", rule("orders/*", access.Acquire)))
		p, _ := ps.Authenticate(t.Context(), "t")
		if replaced(t, ps, worker("t", rule("orders/*", access.Acquire))); ended(p) {
			t.Error("a change of nothing has ended the worker")
		}
		replaced(t, ps, worker("t", rule("stock/*", access.Acquire)))
		if p.May(access.Acquire, "orders/1") || !p.May(access.Acquire, "stock/1") || !ended(p) {
			t.Error("other rules do not count at once, or nobody was logged")
		}
		p, _ = ps.Authenticate(t.Context(), "t")
		replaced(t, ps, worker("other", rule("stock/*", access.Acquire)))
		if p.May(access.Acquire, "stock/1") || !ended(p) {
			t.Error("a token that was taken away still counts")
		}
		replaced(t, ps, access.Definition{Name: "thief", Tokens: []access.Digest{access.DigestOf("t")}, Rules: []access.Rule{rule("*", access.Acquire)}})
		if p.May(access.Acquire, "stock/1") {
			t.Error("a token that is another's now gives its rights to the one before")
		}
	})
}

func TestTokensRotateWithAnOverlap(t *testing.T) {
	t.Parallel()
	both := worker("old", rule("*", access.Acquire))
	both.Tokens = append(both.Tokens, access.DigestOf("new"))
	ps := made(t, worker("old", rule("*", access.Acquire)))
	for _, step := range []struct {
		to       access.Definition
		old, new bool
	}{{both, true, true}, {worker("new", rule("*", access.Acquire)), false, true}} {
		replaced(t, ps, step.to)
		_, errOld := ps.Authenticate(t.Context(), "old")
		_, errNow := ps.Authenticate(t.Context(), "new")
		if old, now := errOld == nil, errNow == nil; old != step.old || now != step.new {
			t.Errorf("the old token is known: %v, the new one: %v; want %v, %v", old, now, step.old, step.new)
		}
	}
}

func TestAChangeSaysWhom(t *testing.T) {
	t.Parallel()
	other := func(name string, rules ...access.Rule) access.Definition {
		return access.Definition{Name: name, Tokens: []access.Digest{access.DigestOf(name)}, Rules: rules}
	}
	ps := made(t, other("a"), other("b"), other("c"))
	got := replaced(t, ps, other("b", rule("*", access.SQL)), other("c"), other("d"))
	if want := (access.Change{Added: []string{"d"}, Changed: []string{"b"}, Removed: []string{"a"}}); !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if _, err := ps.Replace(nil); err == nil {
		t.Error("no principals at all: accepted")
	}
	if _, err := ps.Authenticate(t.Context(), "d"); err != nil {
		t.Error("a refused change has changed something")
	}
}

func TestKeysOfTheS3PortAreKnownByName(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ps := made(t, access.Definition{Name: "s3:app", Rules: []access.Rule{rule("", access.Buckets)}})
		p, ok := ps.ByName("s3:app")
		if !ok || !p.May(access.Buckets, "") {
			t.Error("s3:app may not manage buckets")
		}
		if other, ok := ps.ByName("s3:other"); ok || other.May(access.Buckets, "") {
			t.Error("a key that is no principal may manage buckets")
		}
		replaced(t, ps, access.Definition{Name: "s3:new"})
		if p.May(access.Buckets, "") || !ended(p) {
			t.Error("a key that is no principal any more may manage buckets")
		}
	})
}

func TestPatternsLeaveOutWhatOthersInclude(t *testing.T) {
	t.Parallel()
	p := access.NewPrincipal("p", rule("orders/*", access.Inspect), rule("orders/1", access.Inspect, access.SQL), rule("orders/eu/*", access.Inspect), rule("orders", access.Inspect), rule("orders", access.Inspect))
	if got, want := p.Patterns(access.Inspect), []string{"orders", "orders/*"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := access.Everybody().Patterns(access.Inspect); !slices.Equal(got, []string{"*"}) {
		t.Errorf("everybody: %q", got)
	}
	if got := access.NewPrincipal("p", rule("*", access.SQL), rule("a*", access.SQL)).Patterns(access.SQL); !slices.Equal(got, []string{"*"}) {
		t.Errorf("everything: %q", got)
	}
}

func TestDefinitionsThatMeanNothingAreRefused(t *testing.T) {
	t.Parallel()
	a := access.Definition{Name: "a", Tokens: []access.Digest{access.DigestOf("a")}}
	with := func(change func(*access.Definition)) []access.Definition {
		b := access.Definition{Name: "b", Tokens: []access.Digest{access.DigestOf("b")}}
		change(&b)
		return []access.Definition{a, b}
	}
	for name, all := range map[string][]access.Definition{
		"name: missing":              with(func(d *access.Definition) { d.Name = "" }),
		"name: that of another":      with(func(d *access.Definition) { d.Name = "a" }),
		"name: a control character":  with(func(d *access.Definition) { d.Name = "b\n" }),
		"name: a space behind":       with(func(d *access.Definition) { d.Name = "b " }),
		"name: too long":             with(func(d *access.Definition) { d.Name = strings.Repeat("b", 201) }),
		"name: no key":               with(func(d *access.Definition) { d.Name = "s3:" }),
		"tokens: of a key":           with(func(d *access.Definition) { d.Name = "s3:b" }),
		"tokens: missing":            with(func(d *access.Definition) { d.Tokens = nil }),
		"tokens: that of another":    with(func(d *access.Definition) { d.Tokens = a.Tokens }),
		"tokens: one twice":          with(func(d *access.Definition) { d.Tokens = append(d.Tokens, d.Tokens...) }),
		"tokens: of an empty token":  with(func(d *access.Definition) { d.Tokens = []access.Digest{access.DigestOf("")} }),
		"tokens: too many":           with(func(d *access.Definition) { d.Tokens = make([]access.Digest, 11) }),
		"verbs: unknown":             with(func(d *access.Definition) { d.Rules = []access.Rule{rule("*", "x")} }),
		"allow: too many":            with(func(d *access.Definition) { d.Rules = make([]access.Rule, 101) }),
		"principals: none":           {},
		"principals: more than 1000": make([]access.Definition, 1001),
	} {
		_, err := access.New(all)
		invalid, ok := errors.AsType[*fence.InvalidError](err)
		if field, _, _ := strings.Cut(name, ":"); !ok || invalid.Field != field {
			t.Errorf("%s: got %v", name, err)
		}
		if at, ok := errors.AsType[*access.DefinitionError](err); ok && at.Index != 1 {
			t.Errorf("%s: says it is number %d", name, at.Index)
		}
	}
	if _, err := access.ParseDigest("secret"); err == nil || strings.Contains(err.Error(), "secret") {
		t.Errorf("a token itself: %v", err)
	}
}
