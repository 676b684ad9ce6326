package main

import (
	"bytes"
	"errors"
	"fmt"
	"strings"

	"github.com/fencegate/fencegate/gateway/pgwire"
	"github.com/fencegate/fencegate/internal/regular"
)

// maxPolicyFile bounds a file of policies.
const maxPolicyFile = 1 << 20

// readPolicyFile reads the rules of the PostgreSQL port. Each line is a rule: "policy" or "lease", and a value of
// --pg-policy or --pg-lease. A truncated file must not open the port: so the last policy is for every role and
// database, and the last line ends with a newline.
func readPolicyFile(path string) (p pgwire.Permits, err error) {
	invalid := func(err error) (pgwire.Permits, error) {
		return pgwire.Permits{}, fmt.Errorf("--pg-policy-file %s: %w", path, err)
	}
	text, err := regular.Read(path, maxPolicyFile)
	switch {
	case err != nil:
		return invalid(errors.Unwrap(err)) // without the path, which the message already has
	case len(text) > 0 && !bytes.HasSuffix(text, []byte("\n")):
		return invalid(errors.New("its last line has no line break: is the file complete?"))
	}
	number := 0
	for line := range strings.Lines(string(text)) {
		number++
		if err := addPolicyLine(&p, line); err != nil {
			return invalid(fmt.Errorf("line %d: %w", number, err))
		}
	}
	if len(p.Rules) == 0 {
		return invalid(errors.New("has no policy; where every session is to be relayed, write: policy *=open"))
	}
	if err := pgwire.CheckRules(p.Rules, ""); err != nil { // the gateway knows the database
		return invalid(err)
	}
	if !forEveryone(p.Rules) {
		return invalid(errors.New("its last policy is not for everyone: end with policy *=grant-required, or *=read-only or *=open"))
	}
	return p, nil
}

// forEveryone reports whether the last policy is for every role and database. Without it a session that no policy names
// is relayed.
func forEveryone(rules []pgwire.Rule) bool {
	if len(rules) == 0 {
		return false
	}
	last := rules[len(rules)-1]
	return last.User == "*" && last.Database == "*"
}

func addPolicyLine(p *pgwire.Permits, line string) error {
	line = strings.TrimSpace(line)
	if line == "" || line[0] == '#' {
		return nil
	}
	kind := strings.Fields(line)[0]
	rule := strings.TrimSpace(line[len(kind):])
	switch kind {
	case "policy":
		r, err := pgwire.ParseRule(rule)
		p.Rules = append(p.Rules, r)
		return err
	case "lease":
		r, err := pgwire.ParseLeaseRule(rule)
		p.LeaseRules = append(p.LeaseRules, r)
		return err
	}
	// The line is not shown: it may be a secret from another file.
	return errors.New("is neither policy USER=POLICY nor lease USER=RESOURCE")
}

// permits returns the rules of the PostgreSQL port, from the flags or the file.
func (o *serveFlags) permits() (p pgwire.Permits, err error) {
	if o.policyFile != "" {
		if err = o.oneSourceOfRules(); err != nil {
			return p, err
		}
		if p, err = readPolicyFile(o.policyFile); err != nil {
			return p, usage(err)
		}
		return p, nil
	}
	if p.Rules, err = pgwire.ParseRules(splitAll(o.pgPolicies)); err != nil {
		return p, inFlags(err)
	}
	if p.LeaseRules, err = pgwire.ParseLeaseRules(splitAll(o.pgLeases)); err != nil {
		return p, inFlags(err)
	}
	return p, nil
}

// oneSourceOfRules refuses rules in flags beside a file of rules.
func (o *serveFlags) oneSourceOfRules() error {
	if o.policyFile != "" && len(o.pgPolicies)+len(o.pgLeases) > 0 {
		return usage(errors.New("--pg-policy and --pg-lease can't be combined with --pg-policy-file"))
	}
	return nil
}
