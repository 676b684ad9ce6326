package access

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Principal is the caller of a request. It is safe for concurrent use.
type Principal struct {
	name  string
	all   bool
	now   func() *rights // the current rights; nil: they have ended
	ended <-chan struct{}

	expires time.Time // zero: never
	proof   string    // what expires then
}

// rights are what the rules of a principal allow. They are immutable; a reload replaces them.
type rights struct {
	definition Definition
	ended      chan struct{} // closed when they are replaced
}

// Everybody may do everything. It is the caller if no principals are configured.
func Everybody() *Principal { return &Principal{all: true} }

// NewPrincipal returns a principal whose rights never end, outside of any [Principals].
func NewPrincipal(name string, rules ...Rule) *Principal {
	fixed := &rights{definition: Definition{Name: name, Rules: rules}}
	return &Principal{name: name, now: func() *rights { return fixed }}
}

// Name names the principal in logs and events; "" for [Everybody].
func (p *Principal) Name() string { return p.name }

func (p *Principal) rules() []Rule {
	if p.now == nil {
		return nil
	}
	if r := p.now(); r != nil {
		return r.definition.Rules
	}
	return nil
}

// May reports whether the principal may do this with the resource; resource is "" if the verb is not about one.
func (p *Principal) May(v Verb, resource string) bool {
	if p.all {
		return true
	}
	for _, r := range p.rules() {
		if r.matches(resource) && slices.Contains(r.Verbs, v) {
			return true
		}
	}
	return false
}

// MaySome reports whether there is any resource with which the principal may do this.
func (p *Principal) MaySome(v Verb) bool { return p.all || len(p.Patterns(v)) > 0 }

// Patterns returns the patterns of the resources with which the principal may do this, without patterns that others
// include, ordered by their bytes.
func (p *Principal) Patterns(v Verb) []string {
	if p.all {
		return []string{Everything}
	}
	var all []string
	for _, r := range p.rules() {
		if slices.Contains(r.Verbs, v) {
			all = append(all, r.Resources)
		}
	}
	slices.Sort(all)
	all = slices.Compact(all)
	return slices.DeleteFunc(slices.Clone(all), func(one string) bool {
		name := strings.TrimSuffix(one, "*")
		return slices.ContainsFunc(all, func(other string) bool {
			prefix, isPrefix := strings.CutSuffix(other, "*")
			return isPrefix && other != one && strings.HasPrefix(name, prefix)
		})
	})
}

// ShareOf returns how many of all places the principal may take, so that none takes all of them: a quarter, and at
// least two. [Everybody], which may be many clients, may take all places: 0, no bound.
func (p *Principal) ShareOf(all int) int {
	if p.all {
		return 0
	}
	return max(2, all/4)
}

// Lasts returns a context that ends with ctx, when the principal's rights end or change, or when its token or
// certificate expires. A stream of events, for example, ends then, and the client reconnects.
func (p *Principal) Lasts(ctx context.Context) (context.Context, context.CancelFunc) {
	end := p.expires
	if end.IsZero() {
		end = time.Now().Add(never)
	}
	ctx, cancel := context.WithDeadline(ctx, end)
	if p.ended != nil {
		go func() {
			select {
			case <-p.ended:
				cancel()
			case <-ctx.Done():
			}
		}()
	}
	return ctx, cancel
}

// never is longer than any stream or wait.
const never = 365 * 24 * time.Hour

// Expires reports whether the principal's token or certificate expires.
func (p *Principal) Expires() bool { return !p.expires.IsZero() }

// Changed returns the principal with its current rights, for use after the context of [Principal.Lasts] has ended.
func (p *Principal) Changed() *Principal {
	if p.now == nil {
		return p
	}
	next := *p
	next.ended = nil
	if r := p.now(); r != nil {
		next.ended = r.ended
	}
	return &next
}

// Check returns a [*DeniedError] if the principal may not do this.
func (p *Principal) Check(v Verb, resource string) error {
	if p.May(v, resource) {
		return nil
	}
	return p.Denied(v, resource)
}

// Denied returns the error for an action that the principal may not do.
func (p *Principal) Denied(v Verb, resource string) *DeniedError {
	e := &DeniedError{Principal: p.name, Verb: v, Resource: resource}
	if !p.expires.IsZero() && !time.Now().Before(p.expires) {
		e.Expired = p.proof
	}
	return e
}

type callerKey struct{}

// With returns a context that carries the caller.
func With(ctx context.Context, p *Principal) context.Context {
	return context.WithValue(ctx, callerKey{}, p)
}

// Of returns the context's caller. If there is none, it returns a principal that may do nothing.
func Of(ctx context.Context) *Principal {
	if p, ok := ctx.Value(callerKey{}).(*Principal); ok {
		return p
	}
	return &Principal{}
}

// DeniedError reports what a principal may not do.
type DeniedError struct {
	Principal string
	Verb      Verb
	Resource  string // "" if the verb is not about one
	Expired   string // the proof that has expired, "token" or "certificate"; "" if none has
}

func (e *DeniedError) Error() string {
	who := e.Principal
	switch {
	case e.Expired != "":
		return fmt.Sprintf("the %s of %s has expired", e.Expired, who)
	case who == "":
		who = "nobody"
	}
	if e.Resource == "" {
		return fmt.Sprintf("%s has no right to %s", who, e.Verb)
	}
	return fmt.Sprintf("%s has no right to %s %q", who, e.Verb, e.Resource)
}
