//go:build unix

package child_test

import (
	"context"
	"errors"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/fencegate/fencegate/internal/child"
)

var errNotYet = errors.New("no answer so far")

func notYet(context.Context) error { return errNotYet }

func shell(t *testing.T, script string) *child.Process {
	t.Helper()
	p, err := child.Start(child.Spec{Path: "/bin/sh", Args: []string{"-c", script}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Stop(time.Second) })
	return p
}

func TestReadyReturnsOnceTheProcessAnswers(t *testing.T) {
	t.Parallel()
	looks := 0
	err := shell(t, "exec sleep 1000").Ready(t.Context(), func(context.Context) error {
		if looks++; looks < 3 {
			return errNotYet
		}
		return nil
	})
	if err != nil || looks != 3 {
		t.Fatalf("after %d looks: %v", looks, err)
	}
}

func TestReadySaysHowTheProcessEnded(t *testing.T) {
	t.Parallel()
	for script, want := range map[string]string{"exit 3": "it ended: exit status 3", "exit 0": "it ended: exit status 0"} {
		err := shell(t, script).Ready(t.Context(), notYet)
		if err == nil || !strings.HasPrefix(err.Error(), want) || !errors.Is(err, errNotYet) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v", script, err)
		}
		if _, exit := errors.AsType[*exec.ExitError](err); exit != (script == "exit 3") {
			t.Errorf("%s: an exit error: %t", script, exit)
		}
	}
}

func TestReadyEndsWithItsContext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	err := shell(t, "exec sleep 1000").Ready(ctx, func(context.Context) error {
		cancel()
		return errNotYet
	})
	if !errors.Is(err, context.Canceled) || !errors.Is(err, errNotYet) {
		t.Fatal(err)
	}
}
