package pgwire

import (
	"log/slog"
	"slices"
)

// errPolicies is the error for a session that [Server.Permit] ends.
var errPolicies = &fatalError{
	code: codeAdminShutdown, message: "terminating connection: the gateway's policies have changed",
	hint: "Connect again: the new policies apply.",
}

// Permit replaces the rules. New sessions follow the new ones at once. An open session ends at its next idle moment
// outside a transaction, FATAL 57P01, if its policy has become stricter. Physical replication, which has no such
// moment, ends at once. An error is a [*fence.InvalidError], and nothing has changed.
func (s *Server) Permit(rules []Rule) error {
	if err := CheckRules(rules, s.cfg.Database); err != nil {
		return err
	}
	rules = slices.Clone(rules)
	before := s.rules.Swap(&rules)
	ends := 0
	s.each(func(ss *session) {
		if ss.outdated(rules) {
			ends++
		}
	})
	s.log.Info("the rules of the PostgreSQL port were replaced", "policies", differ(*before, rules), "sessions_ending", ends)
	return nil
}

// permitted sets the policy for the session's login. It holds the session's lock, so that a concurrent change of the
// rules is either seen here, or sees the policy.
func (s *session) permitted() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.policy, s.judged = policyFor(*s.srv.rules.Load(), s.who), true
}

// outdated ends the session between two transactions if the new rules would not admit it as it is.
func (s *session) outdated(rules []Rule) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.judged || s.closing != notClosing || policyFor(rules, s.who) <= s.policy { // before judged is set, who belongs to another goroutine
		return false
	}
	if s.who.physical {
		s.cutLocked(errPolicies)
	} else {
		s.why = errPolicies
		s.endLocked(draining)
	}
	return true
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

func (r Rule) text() string {
	for name, policy := range policyNames {
		if policy == r.Policy {
			return r.String() + "=" + name
		}
	}
	return r.String()
}
