package cluster_test

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/fencegate/fencegate/internal/testenv/clockshim"
	"github.com/fencegate/fencegate/robustness/cluster"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestTheWallClockOfAGoProgramIsSetWhileItRuns(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	program, err := cluster.Build(t.Context(), filepath.Join("testdata", "clock"), dir, nil)
	must(t, err)
	clock, err := (&clockshim.Clock{}).In(filepath.Join(dir, "offset"))
	must(t, err)
	defer clock.Close()
	cmd := exec.CommandContext(t.Context(), program)
	cmd.Env = append(os.Environ(), clock.Env()...)
	in, err := cmd.StdinPipe()
	must(t, err)
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	lines := bufio.NewReader(out)
	began := time.Now()
	for _, offset := range []time.Duration{0, 3 * time.Hour, -5*time.Hour - 999999999, 7 * time.Millisecond, 0} {
		must(t, clock.Set(offset))
		before := time.Now()
		_, err := fmt.Fprintln(in)
		must(t, err)
		var wall, ran int64
		_, err = fmt.Fscan(lines, &wall, &ran)
		must(t, err)
		answer := time.Unix(0, wall).Add(-offset)
		if answer.Before(before.Add(-time.Microsecond)) || answer.After(time.Now()) {
			t.Errorf("shifted by %v it says %v at %v", offset, answer, before)
		}
		if ran < 0 || time.Duration(ran) > time.Since(began)+time.Second {
			t.Errorf("shifted by %v it has run for %v", offset, time.Duration(ran))
		}
	}
	must(t, in.Close())
	must(t, cmd.Wait())
}
