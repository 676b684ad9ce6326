package access

import (
	"context"
	"fmt"
	"slices"
	"strings"
)

// Verb is something that a principal may do.
type Verb string

// The verbs. Those of resources are allowed for patterns of names; the others for the
// whole gateway.
const (
	Acquire  Verb = "acquire"  // acquire leases, and renew and release one's own
	Manage   Verb = "manage"   // renew and release the leases of others
	Revoke   Verb = "revoke"   // take a resource from its holder
	Inspect  Verb = "inspect"  // see a resource: its holder, its events, its refusals
	SQL      Verb = "sql"      // run statements at /v1/sql under a grant of the resource
	S3Read   Verb = "s3-read"  // read objects without a lease
	Buckets  Verb = "buckets"  // make buckets, and change their rules
	Sessions Verb = "sessions" // see and end sessions of the PostgreSQL port
	Metrics  Verb = "metrics"  // read metrics
)

// Rule allows verbs for the resources of a pattern.
type Rule struct {
	// Resources is a resource's name, or the beginning of names followed by "*".
	Resources string
	Verbs     []Verb
}

func (r Rule) matches(resource string) bool {
	if prefix, ok := strings.CutSuffix(r.Resources, "*"); ok {
		return strings.HasPrefix(resource, prefix)
	}
	return r.Resources == resource
}

// Principal is who asks. It is safe for concurrent use.
type Principal struct {
	name  string
	all   bool
	rules []Rule
	ended chan struct{}
}

// Everybody may do everything. It is who asks where no principals are configured.
func Everybody() *Principal { return &Principal{all: true} }

// Name names the principal in logs and events; "" for [Everybody].
func (p *Principal) Name() string { return p.name }

// May reports whether the principal may do this with the resource; "" where the verb is not
// about one.
func (p *Principal) May(v Verb, resource string) bool {
	if p.all {
		return true
	}
	for _, r := range p.rules {
		if r.matches(resource) && slices.Contains(r.Verbs, v) {
			return true
		}
	}
	return false
}

// Ended is closed when the principal's rights have ended or changed: what it reads, such as
// a stream of events, ends then, and is asked for again. nil where that never happens.
func (p *Principal) Ended() <-chan struct{} { return p.ended }

type key struct{}

// With returns a context that carries who asks.
func With(ctx context.Context, p *Principal) context.Context {
	return context.WithValue(ctx, key{}, p)
}

// Of is who asks. Where nobody was set, it may do nothing.
func Of(ctx context.Context) *Principal {
	if p, ok := ctx.Value(key{}).(*Principal); ok {
		return p
	}
	return &Principal{}
}

// DeniedError says what a principal may not do.
type DeniedError struct {
	Principal string
	Verb      Verb
	Resource  string // "" where the verb is not about one
}

func (e *DeniedError) Error() string {
	if e.Resource == "" {
		return fmt.Sprintf("%s has no right to %s", e.Principal, e.Verb)
	}
	return fmt.Sprintf("%s has no right to %s %q", e.Principal, e.Verb, e.Resource)
}
