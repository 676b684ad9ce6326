package pgfence_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/pgfence"
)

// points are the progress of a transaction when the arm begins: what it has done by then, and what it does
// concurrently.
var points = []struct {
	name         string
	before, then []string
}{
	{"before its first statement", nil, []string{insertWork}},
	{"between its snapshot and its write", []string{`SELECT 1`}, []string{insertWork}},
	{"between two writes", []string{insertWork}, []string{insertWork}},
	{"at COMMIT", []string{insertWork}, nil},
}

func steps(t *testing.T, conn *pgx.Conn, list []string) error {
	t.Helper()
	for _, sql := range list {
		if _, err := conn.Exec(t.Context(), sql); err != nil {
			return err
		}
	}
	return nil
}

// begun returns a session that presents the grant and has done the steps. The settings belong to the session, because a
// statement in the transaction would take its snapshot. A session that committed may notice only now that the last arm
// ended it: then it starts again with a new one.
func begun(t *testing.T, w world, writer *pgx.Conn, g fence.Grant, list []string) *pgx.Conn {
	t.Helper()
	for {
		if writer.IsClosed() {
			writer = w.session(t)
		}
		_, err := writer.Exec(t.Context(), `SELECT set_config('fence.resource', $1, false), set_config('fence.token', $2, false)`, g.Resource, g.Presented())
		if err == nil {
			err = steps(t, writer, list)
		}
		if err == nil {
			return writer
		}
		if !writer.IsClosed() {
			t.Fatal(err)
		}
	}
}

// pointRace runs rounds in which a stale transaction at a point races with an arm. late counts the rows that landed
// after the arm had returned, landed the transactions that committed in time, and refused the others. It runs further
// rounds, up to a limit, until both outcomes have happened often enough, because on a busy machine one side may win
// nearly every round.
func pointRace(t *testing.T, w world, level pgx.TxIsoLevel, before, then []string, rounds int, enough func(late, landed int) bool) (late, landed, refused int) {
	t.Helper()
	writer := w.session(t)
	count := func() int { return value[int](t, w, `SELECT count(*) FROM work`) }
	g := w.acquire(t, orders, 1)
	for round := 0; round < rounds || !enough(late, landed) && round < 20*rounds; round++ {
		writer = begun(t, w, writer, g, append([]string{`BEGIN ISOLATION LEVEL ` + string(level)}, before...))
		rows := count()
		start := make(chan struct{})
		done := make(chan error, 1)
		go func() {
			<-start
			err := steps(t, writer, then)
			if err == nil {
				err = steps(t, writer, []string{`COMMIT`})
			} else if !writer.IsClosed() {
				_ = steps(t, writer, []string{`ROLLBACK`})
			}
			done <- err
		}()
		next := fence.Grant{Resource: orders, Token: fence.Token(round + 2), Seal: fence.NewSeal()}
		close(start)
		for begun := time.Now(); time.Since(begun) < time.Duration(round%20)*50*time.Microsecond; { // so that they meet everywhere
		}
		if err := w.fence.Arm(t.Context(), arming(next)); err != nil {
			t.Fatal(err)
		}
		g = next
		inTime := count() - rows
		err := <-done
		if after := count() - rows; after != inTime {
			late++
		}
		if err == nil {
			landed++
		} else {
			refused++
		}
	}
	return late, landed, refused
}

func TestRacesAtEveryPoint(t *testing.T) {
	t.Parallel()
	for _, table := range []struct {
		name   string
		setup  func(*testing.T, ...pgfence.Option) world
		rounds int
	}{
		{"a resource", func(t *testing.T, opts ...pgfence.Option) world { return setup(t, opts...) }, 320},
		{"a resource per row", func(t *testing.T, opts ...pgfence.Option) world {
			w := perRowRace(t, opts...)
			w.exec(t, `DROP TRIGGER fence_guard ON work`)
			return w
		}, 100},
	} {
		for _, level := range levels {
			t.Run(fmt.Sprintf("%s/%s", table.name, level), func(t *testing.T) {
				t.Parallel()
				for _, p := range points {
					w := table.setup(t, pgfence.WithGrace(5*time.Millisecond))
					late, landed, refused := pointRace(t, w, level, p.before, p.then, table.rounds, func(_, landed int) bool { return landed > 0 })
					if late > 0 {
						t.Errorf("%s: %d writes landed after arm had returned", p.name, late)
					}
					if landed == 0 {
						t.Errorf("%s: arm was always first", p.name)
					}
					t.Logf("%s: %d in time, %d refused", p.name, landed, refused)
				}
			})
		}
	}
}

func TestTheRacesAtPointsCatchMutants(t *testing.T) {
	t.Parallel()
	caughtAt := map[string][]string{
		"without the lock":      {"between two writes", "at COMMIT"},
		"without the xmax test": {"between its snapshot and its write"},
	}
	for _, level := range levels {
		for _, p := range points {
			for mutant, names := range caughtAt {
				m := mutants[mutant]
				if !slices.Contains(names, p.name) || !slices.Contains(m.levels, level) {
					continue
				}
				t.Run(fmt.Sprintf("%s/%s/%s", level, p.name, mutant), func(t *testing.T) {
					t.Parallel()
					w := setup(t)
					mutate(t, w, m.old, m.replacement)
					late, _, _ := pointRace(t, w, level, p.before, p.then, 250, func(late, _ int) bool { return late > 0 })
					if t.Logf("%d late writes", late); late == 0 {
						t.Error("twenty times 250 rounds did not catch it")
					}
				})
			}
		}
	}
}
