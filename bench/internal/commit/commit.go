// Package commit builds fencegate as it was at a commit, for benchmarks that compare the tree with it.
package commit

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// Build builds fencegate at a commit and in the tree, in folder dir.
func Build(ctx context.Context, dir, commit string) (old, tree string, err error) {
	top, err := exec.CommandContext(ctx, "git", "rev-parse", "--show-toplevel").Output()
	if err != nil {
		return "", "", fmt.Errorf("git rev-parse: %w", err)
	}
	root, source := strings.TrimSpace(string(top)), filepath.Join(dir, "source")
	old, tree = filepath.Join(dir, "fencegate-base"), filepath.Join(dir, "fencegate-tree")
	unpack := exec.CommandContext(ctx, "sh", "-c", `mkdir "$2" && git archive "$1" | tar -x -C "$2" && test -e "$2/go.mod"`, "sh", commit, source)
	unpack.Dir = root
	if out, err := unpack.CombinedOutput(); err != nil {
		return "", "", fmt.Errorf("unpack %s: %w: %s", commit, err, out)
	}
	for _, b := range []struct{ from, to string }{{source, old}, {root, tree}} {
		cmd := exec.CommandContext(ctx, "go", "build", "-buildvcs=false", "-o", b.to, "./cmd/fencegate")
		cmd.Dir = b.from
		cmd.Env = append(os.Environ(), "GOWORK=off")
		if out, err := cmd.CombinedOutput(); err != nil {
			return "", "", fmt.Errorf("go build in %s: %w: %s", b.from, err, out)
		}
	}
	return old, tree, os.RemoveAll(source)
}
