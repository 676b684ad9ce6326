package pgwire

import (
	"fmt"
	"log/slog"
	"slices"
	"strings"

	"github.com/fencegate/fencegate/fence"
)

// Policy is what a session without a current grant may do. With any policy the guards of the tables check every write;
// a policy only refuses early.
type Policy int

// Policies.
const (
	// PolicyOpen relays every session.
	PolicyOpen Policy = iota
	// PolicyReadOnly starts a session that presents no grant with default_transaction_read_only on. That protects
	// unguarded tables from mistakes; a client can turn it off. A session that presents a grant is treated as under
	// [PolicyGrantRequired].
	PolicyReadOnly
	// PolicyGrantRequired refuses a session whose startup options carry no current
	// grant, after its login and before its first statement.
	PolicyGrantRequired
)

var policyNames = map[string]Policy{"open": PolicyOpen, "read-only": PolicyReadOnly, "grant-required": PolicyGrantRequired}

// Rule sets a policy for the sessions of a user in a database.
type Rule struct {
	User     string // the role that logs in; "*": all
	Database string // "*": all; "replication": physical replication, which has no database
	Policy   Policy
}

// physicalDatabase is the name for physical replication in rules, as in PostgreSQL's pg_hba.conf.
const physicalDatabase = "replication"

// ParseRule parses "USER=POLICY" or "USER@DATABASE=POLICY". The error is a [*fence.InvalidError].
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

// ParseRules parses several rules, as [ParseRule] does.
func ParseRules(texts []string) (all []Rule, err error) {
	for _, text := range texts {
		one, err := ParseRule(text)
		if err != nil {
			return nil, err
		}
		all = append(all, one)
	}
	return all, nil
}

func cutLast(s, sep string) (before, after string, found bool) {
	if i := strings.LastIndex(s, sep); i >= 0 {
		return s[:i], s[i+len(sep):], true
	}
	return s, "", false
}

// policyFor returns the policy of the first rule that matches; without one, open.
func policyFor(rules []Rule, who startup) Policy {
	database := truncate(who.database)
	if who.physical {
		database = physicalDatabase
	}
	for _, r := range rules {
		if matches(r.User, truncate(who.user)) && matches(r.Database, database) {
			return r.Policy
		}
	}
	return PolicyOpen
}

// CheckRules refuses a rule that matches no session: one for a database other than the served one ("": all are served),
// or one after a rule that matches all of its sessions. The error is a [*fence.InvalidError].
func CheckRules(rules []Rule, database string) error {
	for i, r := range rules {
		if database != "" && r.Database != database && r.Database != "*" && r.Database != physicalDatabase {
			return &fence.InvalidError{Field: "policy", Reason: fmt.Sprintf("for %s names another database than %q, which is served", r, database)}
		}
		for _, before := range rules[:i] {
			if (before.User == "*" || before.User == r.User) && (before.Database == "*" || before.Database == r.Database) {
				return &fence.InvalidError{Field: "policy", Reason: fmt.Sprintf("for %s never applies: the policy for %s before it matches all its sessions", r, before)}
			}
		}
	}
	return nil
}

// String returns the user and database of the rule.
func (r Rule) String() string { return r.User + "@" + r.Database }

func (r Rule) text() string {
	for name, policy := range policyNames {
		if policy == r.Policy {
			return r.String() + "=" + name
		}
	}
	return r.String()
}

// differ describes what has changed in a list whose order matters.
func differ(before, after []Rule) slog.Value {
	lacking := func(in []Rule) func(Rule) bool { return func(one Rule) bool { return !slices.Contains(in, one) } }
	texts := func(all []Rule, keep func(Rule) bool) (some []string) {
		for _, one := range all {
			if keep(one) {
				some = append(some, one.text())
			}
		}
		return some
	}
	added, removed := texts(after, lacking(before)), texts(before, lacking(after))
	switch {
	case slices.Equal(before, after):
		return slog.StringValue("as before")
	case len(added)+len(removed) == 0:
		return slog.StringValue("in another order")
	}
	return slog.GroupValue(slog.Any("added", added), slog.Any("removed", removed))
}

func matches(pattern, name string) bool { return pattern == "*" || truncate(pattern) == name }
