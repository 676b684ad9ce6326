package pgwire

import (
	"fmt"
	"strings"

	"github.com/fencegate/fencegate/fence"
)

// Policy is what a session without a current grant may do. Whatever it is, the
// guards of the tables decide on every write; a policy refuses early.
type Policy int

// Policies.
const (
	// PolicyOpen relays every session.
	PolicyOpen Policy = iota
	// PolicyReadOnly starts a session that presents no grant with
	// default_transaction_read_only on. That keeps mistakes from tables without a
	// guard; a client that means to can turn it off. One that presents a grant is
	// treated as under [PolicyGrantRequired].
	PolicyReadOnly
	// PolicyGrantRequired refuses a session whose startup options carry no current
	// grant, after its login and before its first statement.
	PolicyGrantRequired
)

var policyNames = map[string]Policy{"open": PolicyOpen, "read-only": PolicyReadOnly, "grant-required": PolicyGrantRequired}

// Rule gives the sessions of a user in a database a policy.
type Rule struct {
	User     string // the role that logs in; "*": every one
	Database string // "*": every one; "replication": physical replication, which is in no database
	Policy   Policy
}

// physicalDatabase is what a rule calls the place of physical replication, as
// PostgreSQL's own pg_hba.conf does.
const physicalDatabase = "replication"

// ParseRule reads "USER=POLICY" or "USER@DATABASE=POLICY". The error is a
// [*fence.InvalidError].
func ParseRule(text string) (Rule, error) {
	left, name, _ := cutLast(text, "=")
	policy, known := policyNames[name]
	user, database, ok := cutLast(left, "@")
	if !ok {
		user, database = left, "*"
	}
	if !known || user == "" || database == "" {
		return Rule{}, &fence.InvalidError{
			Field: "policy", Reason: fmt.Sprintf("is %q; USER=POLICY or USER@DATABASE=POLICY is needed, with open, read-only or grant-required", text),
		}
	}
	return Rule{User: user, Database: database, Policy: policy}, nil
}

// ParseRules reads several, as [ParseRule] does.
func ParseRules(texts []string) ([]Rule, error) { return parseAll(texts, ParseRule) }

// ParseLeaseRules reads several, as [ParseLeaseRule] does.
func ParseLeaseRules(texts []string) ([]LeaseRule, error) { return parseAll(texts, ParseLeaseRule) }

func parseAll[T any](texts []string, parse func(string) (T, error)) (all []T, err error) {
	for _, text := range texts {
		one, err := parse(text)
		if err != nil {
			return nil, err
		}
		all = append(all, one)
	}
	return all, nil
}

// LeaseRule lets a user's sessions lease resources at their login.
type LeaseRule struct {
	User     string // the role that logs in; "*": every one
	Resource string // a name, or what names begin with and "*"
}

// ParseLeaseRule reads "USER=RESOURCE" or "USER=PREFIX*", the name
// percent-encoded. The error is a [*fence.InvalidError].
func ParseLeaseRule(text string) (LeaseRule, error) {
	user, pattern, ok := strings.Cut(text, "=")
	invalid := func(why string) (LeaseRule, error) {
		return LeaseRule{}, &fence.InvalidError{Field: "lease rule", Reason: fmt.Sprintf("is %q; %s", text, why)}
	}
	if !ok || user == "" || pattern == "" {
		return invalid("USER=RESOURCE or USER=PREFIX* is needed")
	}
	name, isPrefix := strings.CutSuffix(pattern, "*")
	if name == "" {
		return LeaseRule{User: user, Resource: "*"}, nil
	}
	resource, err := fence.UnescapeResource(name)
	if err != nil {
		return invalid(err.Error())
	}
	if isPrefix {
		resource += "*"
	}
	return LeaseRule{User: user, Resource: resource}, nil
}

func cutLast(s, sep string) (before, after string, found bool) {
	if i := strings.LastIndex(s, sep); i >= 0 {
		return s[:i], s[i+len(sep):], true
	}
	return s, "", false
}

// policyFor is what the first rule that fits says; without one, open.
func (p *Permits) policyFor(who startup) Policy {
	database := truncated(who.database)
	if who.physical {
		database = physicalDatabase
	}
	for _, r := range p.Rules {
		if fits(r.User, truncated(who.user)) && fits(r.Database, database) {
			return r.Policy
		}
	}
	return PolicyOpen
}

// CheckRules refuses a rule that fits no session: one for another database than
// the one that is served ("": every one is), or behind one that fits all of its own. The error
// is a [*fence.InvalidError].
func CheckRules(rules []Rule, database string) error {
	for i, r := range rules {
		if database != "" && r.Database != database && r.Database != "*" && r.Database != physicalDatabase {
			return &fence.InvalidError{Field: "policy", Reason: fmt.Sprintf("for %s names another database than %q, which is served", r, database)}
		}
		for _, before := range rules[:i] {
			if (before.User == "*" || before.User == r.User) && (before.Database == "*" || before.Database == r.Database) {
				return &fence.InvalidError{Field: "policy", Reason: fmt.Sprintf("for %s never counts: that for %s comes before it", r, before)}
			}
		}
	}
	return nil
}

// String says whom the rule is for.
func (r Rule) String() string { return r.User + "@" + r.Database }

func (p *Permits) mayLease(user, resource string) bool {
	for _, r := range p.LeaseRules {
		prefix, isPrefix := strings.CutSuffix(r.Resource, "*")
		if fits(r.User, truncated(user)) && (resource == r.Resource || isPrefix && strings.HasPrefix(resource, prefix)) {
			return true
		}
	}
	return false
}

func fits(pattern, name string) bool { return pattern == "*" || truncated(pattern) == name }

// truncated is the name that PostgreSQL looks for: it takes 63 bytes of what a
// client sends, so two spellings may be one role.
func truncated(name string) string { return name[:min(len(name), maxNameBytes)] }

// maxNameBytes is PostgreSQL's own limit for names.
const maxNameBytes = 63
