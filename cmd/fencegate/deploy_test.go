package main

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// What deploy has is started with flags and variables that serve knows, and no other.
func TestDeploymentsUseFlagsThatServeHas(t *testing.T) {
	t.Parallel()
	flags := newServe(env{}).Flags()
	given := regexp.MustCompile(`(?m)^(?:\s*- |ExecStart=.* serve |.* )?--([a-z][a-z0-9-]*)`)
	named := regexp.MustCompile(`FENCEGATE_([A-Z0-9_]+)`)
	for _, file := range []string{"systemd/fencegate.service", "kubernetes/fencegate.yaml"} {
		text, err := os.ReadFile(filepath.Join("..", "..", "deploy", file))
		if err != nil {
			t.Fatal(err)
		}
		var set []string
		for line := range bytes.Lines(text) {
			if bytes.HasPrefix(bytes.TrimSpace(line), []byte("#")) {
				line = named.Find(line) // comments name variables, and flags of other commands
			}
			for word := range bytes.FieldsSeq(line) {
				if m := given.FindSubmatch(word); m != nil {
					set = append(set, string(m[1]))
				}
			}
			for _, m := range named.FindAllSubmatch(line, -1) {
				set = append(set, strings.ToLower(strings.ReplaceAll(string(m[1]), "_", "-")))
			}
		}
		if len(set) < 3 {
			t.Errorf("%s: found only %q", file, set)
		}
		for _, name := range set {
			if flags.Lookup(name) == nil {
				t.Errorf("%s uses --%s, which serve does not have", file, name)
			}
		}
	}
}
