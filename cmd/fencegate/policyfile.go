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

// readPolicyFile reads the rules of the PostgreSQL port. Each line is a rule: "policy" and a value of --pg-policy. A
// truncated file must not open the port: so the last policy is for every role and database, and the last line ends with
// a newline.
func readPolicyFile(path string) (rules []pgwire.Rule, err error) {
	invalid := func(err error) ([]pgwire.Rule, error) {
		return nil, fmt.Errorf("--pg-policy-file %s: %w", path, err)
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
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		rule, err := parsePolicyLine(line)
		if err != nil {
			return invalid(fmt.Errorf("line %d: %w", number, err))
		}
		rules = append(rules, rule)
	}
	if len(rules) == 0 {
		return invalid(errors.New("has no policy; where every session is to be relayed, write: policy *=open"))
	}
	if err := pgwire.CheckRules(rules, ""); err != nil { // the gateway knows the database
		return invalid(err)
	}
	if !forEveryone(rules) {
		return invalid(errors.New("its last policy is not for everyone: end with policy *=grant-required, or *=read-only or *=open"))
	}
	return rules, nil
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

func parsePolicyLine(line string) (pgwire.Rule, error) {
	kind := strings.Fields(line)[0]
	if kind != "policy" { // the line is not shown: it may be a secret from another file
		return pgwire.Rule{}, errors.New("is not policy USER=POLICY")
	}
	return pgwire.ParseRule(strings.TrimSpace(line[len(kind):]))
}

// rules returns the rules of the PostgreSQL port, from the flags or the file.
func (o *serveFlags) rules() (rules []pgwire.Rule, err error) {
	if o.policyFile != "" {
		if err = o.oneSourceOfRules(); err != nil {
			return nil, err
		}
		if rules, err = readPolicyFile(o.policyFile); err != nil {
			return nil, usage(err)
		}
		return rules, nil
	}
	if rules, err = pgwire.ParseRules(splitAll(o.pgPolicies)); err != nil {
		return nil, o.options.inFlags(err)
	}
	return rules, nil
}

// oneSourceOfRules refuses rules in flags beside a file of rules.
func (o *serveFlags) oneSourceOfRules() error {
	if o.policyFile != "" && len(o.pgPolicies) > 0 {
		return usage(errors.New("--pg-policy can't be combined with --pg-policy-file"))
	}
	return nil
}
