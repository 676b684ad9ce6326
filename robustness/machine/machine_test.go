package machine

import (
	"bufio"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/fencegate/fencegate/internal/testenv"
	"github.com/fencegate/fencegate/robustness/history"
)

func TestMain(m *testing.M) { testenv.VerifyMain(m) }

const ms = int64(time.Millisecond)

func TestOnlyWhatOthersOrTheDiskTookIsLost(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		slow, waited int64
		others       float64
		lost         int64
	}{
		"nothing":                     {0, 0, 0.9, 0},
		"others":                      {400 * ms, 0, 0.5, 400 * ms},
		"the run itself":              {400 * ms, 0, 0.1, 0},
		"the disk":                    {0, 300 * ms, 0, 300 * ms},
		"both":                        {400 * ms, 300 * ms, 0.5, 700 * ms},
		"the run itself and the disk": {400 * ms, 300 * ms, 0.1, 300 * ms},
		"more than there is":          {990 * ms, 990 * ms, 1, 900 * ms},
	} {
		m := measured{until: second, times: 5, slow: float64(c.slow), waited: c.waited}
		if p := m.pace(0, c.others); p.Lost != c.lost || p.From != 0 || p.To != second {
			t.Errorf("%s: lost %d of %d to %d, want %d", name, p.Lost, p.From, p.To, c.lost)
		}
	}
}

func TestWhatIsNeitherIdleNorTheRunsOwnIsOthers(t *testing.T) {
	t.Parallel()
	before := usage{at: 5 * second, idle: 3 * second, own: map[int]processTime{7: {used: second}}, number: 4}
	for _, c := range []struct {
		idle, own int64
		others    float64
	}{{4 * second, 0, 0}, {0, 4 * second, 0}, {second, second, 0.5}, {0, 0, 1}, {4 * second, second, 0}} {
		after := usage{at: before.at + second, idle: before.idle + c.idle, own: map[int]processTime{7: {used: second + c.own}}, number: 4}
		if got := after.since(before); got != c.others {
			t.Errorf("idle for %d, own %d: %g to others, want %g", c.idle, c.own, got, c.others)
		}
	}
}

// A run that kills its own is not slowed by others: what the dead had used is not taken from what the others use.
func TestWhatIsKilledTakesNoTimeAlong(t *testing.T) {
	t.Parallel()
	before := map[int]processTime{1: {0, 10, 5}, 2: {1, 50, 20}, 3: {2, 30, 0}}
	for name, c := range map[string]struct {
		after map[int]processTime
		used  int64
	}{
		"all go on":                     {map[int]processTime{1: {0, 11, 5}, 2: {1, 52, 20}, 3: {2, 33, 0}}, 6},
		"a child ends":                  {map[int]processTime{1: {0, 11, 5}, 2: {1, 52, 54}}, 7},
		"a short one came and went":     {map[int]processTime{1: {0, 11, 5}, 2: {1, 50, 23}, 3: {2, 30, 0}}, 4},
		"a parent is killed":            {map[int]processTime{1: {0, 11, 78}, 3: {0, 30, 0}}, 4},
		"a parent is killed with child": {map[int]processTime{1: {0, 11, 78}}, 4},
		"a new one":                     {map[int]processTime{1: {0, 11, 5}, 2: {1, 50, 20}, 3: {2, 30, 0}, 4: {1, 2, 0}}, 3},
	} {
		if got := ran(before, c.after); got != c.used {
			t.Errorf("%s: %d, want %d", name, got, c.used)
		}
	}
}

// The run's own processes are this one and its descendants, of which the ended ones count too.
func TestTheRunsOwnProcessorTimeGrowsWithItsWork(t *testing.T) {
	t.Parallel()
	var w work
	if err := w.open(t.TempDir()); err != nil {
		t.Fatal(err)
	}
	defer w.close()
	before, err := family()
	if err != nil {
		t.Fatal(err)
	}
	for range 40 {
		if err := w.compute(); err != nil {
			t.Fatal(err)
		}
	}
	after, err := family()
	if err != nil {
		t.Fatal(err)
	}
	if used := time.Duration(ran(before, after)); used < 20*time.Millisecond || used > time.Minute {
		t.Errorf("40 times the work used %v", used)
	}
}

func TestAYardstickThatCannotMeasureIsAnError(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if _, err := Watch(filepath.Join(dir, "missing")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("without its folder: %v", err)
	}
	if err := os.Mkdir(filepath.Join(dir, "yardstick"), 0o700); err != nil { // where its file belongs
		t.Fatal(err)
	}
	if _, err := Watch(dir); !errors.Is(err, syscall.EISDIR) {
		t.Errorf("without its file: %v", err)
	}
}

func TestAYardstickMeasuresEachSecond(t *testing.T) {
	t.Parallel()
	dir, began := t.TempDir(), history.Now()
	y, err := Watch(dir)
	if err != nil {
		t.Fatal(err)
	}
	if left := y.Left(t.Context(), began, time.Hour); left <= 0 || left > 2*time.Hour {
		t.Errorf("of an hour %v is left", left)
	}
	if left := y.Left(t.Context(), began, 0); left > 0 {
		t.Errorf("of no time %v is left", left)
	}
	if off := time.Now().UnixNano() - history.Now() - y.Ahead(); off > 0 || off < -second {
		t.Errorf("the bound is %d ns off", -off)
	}
	paces := y.Paces()
	if err := y.Close(); err != nil {
		t.Error(err)
	}
	p := paces[0]
	if p.From < began || p.To-p.From < second || p.Lost < 0 || p.Lost > p.To-p.From || p.Least <= 0 || p.Took < p.Least || p.Worst < p.Took {
		t.Errorf("%+v", p)
	}
	file, err := os.Open(filepath.Join(dir, File))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	lines := bufio.NewScanner(file)
	for i, want := range paces {
		var got history.Pace
		if !lines.Scan() || json.Unmarshal(lines.Bytes(), &got) != nil || got != want {
			t.Errorf("line %d: %s, want %+v", i+1, lines.Text(), want)
		}
	}
}
