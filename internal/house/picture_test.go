package house

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the picture into docs/architecture.md")

const (
	module = "github.com/fencegate/fencegate"
	page   = "docs/architecture.md"
	begins = "<!-- the picture is made by: go test ./internal/house -run Picture -update -->\n"
	ends   = "<!-- end of the picture -->\n"
)

// What people import or run, and what lock is made of. Tests' helpers and the rest of internal are left out.
var rooms = []string{"cmd", "gateway", "lock", "client", "migrate", "migrations", "fence", "wire"}

func TestThePictureOfTheHouseShowsItsPackages(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join(root, page))
	if err != nil {
		t.Fatal(err)
	}
	before, rest, found := strings.Cut(string(text), begins)
	drawn, after, closed := strings.Cut(rest, ends)
	if !found || !closed {
		t.Fatalf("%s has no place for the picture: %q … %q", page, begins, ends)
	}
	picture := draw(imports(t))
	switch {
	case drawn == picture:
	case *update:
		if err := os.WriteFile(filepath.Join(root, page), []byte(before+begins+picture+ends+after), 0o644); err != nil {
			t.Fatal(err)
		}
	default:
		t.Errorf("the picture in %s is not what go list shows; run: go test ./internal/house -run Picture -update\n%s", page, picture)
	}
}

// imports returns, for each package of the picture, those that it imports.
func imports(t *testing.T) map[string][]string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "list", "-f", `{{.ImportPath}} {{join .Imports " "}}`, "./...")
	cmd.Dir = root
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	all := map[string][]string{}
	for line := range strings.Lines(string(out)) {
		names := strings.Fields(line)
		pkg, ok := strings.CutPrefix(names[0], module+"/")
		if !ok || !drawnHere(pkg) {
			continue
		}
		all[pkg] = nil
		for _, name := range names[1:] {
			if other, ok := strings.CutPrefix(name, module+"/"); ok && drawnHere(other) {
				all[pkg] = append(all[pkg], other)
			}
		}
	}
	return all
}

func drawnHere(pkg string) bool {
	top, _, _ := strings.Cut(pkg, "/")
	return slices.Contains(rooms, top) && !strings.HasSuffix(pkg, "test") && !strings.HasPrefix(pkg, "cmd/fencegate/")
}

// draw returns a Mermaid chart: a package stands above all that it imports, and an arrow that others imply is left out.
func draw(imports map[string][]string) string {
	floor := map[string]int{}
	reach := map[string]map[string]bool{}
	var visit func(pkg string)
	visit = func(pkg string) {
		if reach[pkg] != nil {
			return
		}
		reach[pkg] = map[string]bool{}
		for _, other := range imports[pkg] {
			visit(other)
			reach[pkg][other] = true
			maps.Copy(reach[pkg], reach[other])
			floor[pkg] = max(floor[pkg], floor[other]+1)
		}
	}
	names := slices.Sorted(maps.Keys(imports))
	for _, pkg := range names {
		visit(pkg)
	}
	id := strings.NewReplacer("/", "_").Replace
	var b strings.Builder
	b.WriteString("```mermaid\nflowchart TB\n")
	for n := slices.Max(slices.Collect(maps.Values(floor))); n >= 0; n-- {
		fmt.Fprintf(&b, "  subgraph floor%d[\" \"]\n", n)
		for _, pkg := range names {
			if floor[pkg] == n {
				fmt.Fprintf(&b, "    %s[%s]\n", id(pkg), pkg)
			}
		}
		b.WriteString("  end\n")
	}
	for _, pkg := range names {
		for _, other := range slices.Sorted(slices.Values(imports[pkg])) {
			implied := slices.ContainsFunc(imports[pkg], func(between string) bool { return reach[between][other] })
			if !implied {
				fmt.Fprintf(&b, "  %s --> %s\n", id(pkg), id(other))
			}
		}
	}
	b.WriteString("```\n")
	return b.String()
}
