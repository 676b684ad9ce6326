package access

import (
	"fmt"
	"slices"
	"strings"

	"github.com/fencegate/fencegate/fence"
)

// Verb is something that a principal may do.
type Verb string

// The verbs. Rules allow verbs about resources for patterns of names, and the others for the whole gateway.
const (
	Acquire  Verb = "acquire"  // acquire leases, and renew and release one's own
	Manage   Verb = "manage"   // renew and release the leases of others
	Revoke   Verb = "revoke"   // take a resource from its holder
	Inspect  Verb = "inspect"  // see a resource: its holder, its events, its refusals
	SQL      Verb = "sql"      // run statements at /v1/sql under a grant of the resource
	S3Read   Verb = "s3-read"  // read objects without a lease
	Buckets  Verb = "buckets"  // create buckets, and change their rules
	Sessions Verb = "sessions" // see and end sessions of the PostgreSQL port
	Metrics  Verb = "metrics"  // read metrics
)

// Verbs returns all verbs.
func Verbs() []Verb {
	return []Verb{Acquire, Manage, Revoke, Inspect, SQL, S3Read, Buckets, Sessions, Metrics}
}

// OfGateway reports whether the verb is about the whole gateway, not about a resource.
func (v Verb) OfGateway() bool { return v == Buckets || v == Sessions || v == Metrics }

// Everything is the pattern of every resource, and of the whole gateway.
const Everything = "*"

// Rule allows verbs for the resources of a pattern.
type Rule struct {
	// Resources is a resource's name, or a prefix of names followed by "*". "": the verbs are about the whole gateway.
	Resources string
	Verbs     []Verb
}

// Validate returns a [*fence.InvalidError] that names the field.
func (r Rule) Validate() error {
	if len(r.Verbs) == 0 {
		return &fence.InvalidError{Field: "verbs", Reason: "are missing"}
	}
	for i, v := range r.Verbs {
		switch {
		case !slices.Contains(Verbs(), v):
			return &fence.InvalidError{Field: "verbs", Reason: fmt.Sprintf("have the unknown %q; there are %s", v, verbList())}
		case slices.Contains(r.Verbs[:i], v):
			return &fence.InvalidError{Field: "verbs", Reason: fmt.Sprintf("have %s twice", v)}
		case v.OfGateway() && r.Resources != "" && r.Resources != Everything:
			return &fence.InvalidError{Field: "verbs", Reason: fmt.Sprintf("have %s, which is about the whole gateway: it goes into a rule without resources", v)}
		case v == S3Read && r.Resources != "" && r.Resources != Everything:
			return &fence.InvalidError{Field: "verbs", Reason: fmt.Sprintf("have %s, which is about all objects: it goes into a rule for \"*\"", v)}
		case !v.OfGateway() && r.Resources == "":
			return &fence.InvalidError{Field: "resources", Reason: fmt.Sprintf("are missing; %s needs them", v)}
		}
	}
	return validatePattern(r.Resources)
}

func validatePattern(pattern string) error {
	name, _ := strings.CutSuffix(pattern, "*")
	if name == "" { // "", and "*"
		return nil
	}
	if strings.Contains(name, "*") {
		return &fence.InvalidError{Field: "resources", Reason: fmt.Sprintf("are %q: a \"*\" stands at the end only", pattern)}
	}
	if err := fence.ValidateResource(name); err != nil {
		return &fence.InvalidError{Field: "resources", Reason: "fit none: a " + err.Error()} // without the name, which may be a grant
	}
	return nil
}

func verbList() string {
	names := make([]string, 0, len(Verbs()))
	for _, v := range Verbs() {
		names = append(names, string(v))
	}
	return strings.Join(names, ", ")
}

// matches compares bytes, without percent-decoding, case folding or path cleaning.
func (r Rule) matches(resource string) bool {
	if prefix, ok := strings.CutSuffix(r.Resources, "*"); ok {
		return strings.HasPrefix(resource, prefix)
	}
	return r.Resources == resource
}
