package pgwire

import (
	"log/slog"
	"slices"

	"github.com/fencegate/fencegate/fence"
)

// Permits are the rules by which the port admits sessions. They may change while it serves, all at once.
type Permits struct {
	// Rules say what sessions without a current grant may do; the first match applies. Defaults to none: every session
	// is relayed.
	Rules []Rule
	// LeaseRules say which resources a role may lease with its login (fence.lease).
	// Defaults to none.
	LeaseRules []LeaseRule
}

// errPermits is the error for a session that [Server.Permit] ends.
var errPermits = &fatalError{
	code: codeAdminShutdown, message: "terminating connection: the gateway's policies have changed",
	hint: "Connect again: the new policies apply.",
}

// Permit replaces the rules. New sessions follow the new ones at once. An open session ends at its next idle moment
// outside a transaction, FATAL 57P01, if its policy has become stricter, or if its role may no longer lease its
// resource. Physical replication, which has no such moment, ends at once. An error is a [*fence.InvalidError], and
// nothing has changed.
func (s *Server) Permit(p Permits) error {
	if err := s.cfg.validatePermits(p); err != nil {
		return err
	}
	p = Permits{slices.Clone(p.Rules), slices.Clone(p.LeaseRules)}
	before := s.permits.Swap(&p)
	ends := 0
	s.each(func(ss *session) {
		if ss.outdated(&p) {
			ends++
		}
	})
	attrs := []any{
		"policies", differ(before.Rules, p.Rules, Rule.text), "leases", differ(before.LeaseRules, p.LeaseRules, LeaseRule.text), "sessions_ending", ends,
	}
	s.log.Info("the rules of the PostgreSQL port were replaced", attrs...)
	return nil
}

func (c *Config) validatePermits(p Permits) error {
	if len(p.LeaseRules) > 0 && c.Leases == nil {
		return &fence.InvalidError{Field: "LeaseRules", Reason: "need Leases"}
	}
	return CheckRules(p.Rules, c.Database)
}

// mayLease reports whether a role may lease a resource.
func (s *Server) mayLease(p *Permits, user, resource string) bool {
	return p.mayLease(user, resource) || s.cfg.MayLease != nil && s.cfg.MayLease(truncated(user), resource)
}

// permitted sets the policy for the session's login. It holds the session's lock, so that a concurrent change of the
// rules is either seen here, or sees the policy.
func (s *session) permitted() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.policy, s.judged = s.srv.permits.Load().policyFor(s.who), true
}

// outdated ends the session between two transactions if the new rules would not admit it as it is.
func (s *session) outdated(p *Permits) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.judged || s.closing != notClosing { // before judged is set, who belongs to another goroutine
		return false
	}
	switch lease := s.who.lease; {
	case lease != nil && s.srv.mayLease(p, s.who.user, lease.resource), lease == nil && p.policyFor(s.who) <= s.policy:
		return false
	case s.who.physical:
		s.cutLocked(errPermits)
	default:
		s.why = errPermits
		s.endLocked(draining)
	}
	return true
}

// differ describes what has changed in a list whose order matters.
func differ[T comparable](before, after []T, text func(T) string) slog.Value {
	lacking := func(in []T) func(T) bool { return func(one T) bool { return !slices.Contains(in, one) } }
	texts := func(all []T, keep func(T) bool) (some []string) {
		for _, one := range all {
			if keep(one) {
				some = append(some, text(one))
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

func (r LeaseRule) text() string { return r.User + "=" + r.Resource }
