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

// points are the progress of a transaction when the arm begins: its statements until then, and those that run
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

// pointRace runs rounds in which a stale transaction at a point races with an arm, until stop. late counts the rows
// that landed after the arm had returned, landed the transactions that committed in time, and refused the others.
func pointRace(t *testing.T, w world, level pgx.TxIsoLevel, before, then []string, rounds int, stop func(late int) bool) (late, landed, refused int) {
	t.Helper()
	writer := w.session(t)
	count := func() int { return value[int](t, w, `SELECT count(*) FROM work`) }
	g := w.renew(t)
	for round := 0; round < rounds && !stop(late); round++ {
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
		next := fence.Grant{Resource: orders, Token: g.Token + 1, Seal: fence.NewSeal()}
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
		{"a resource", func(t *testing.T, opts ...pgfence.Option) world { return setup(t, opts...) }, 40},
		{"a resource per row", func(t *testing.T, opts ...pgfence.Option) world {
			w := perRowRace(t, opts...)
			w.exec(t, `DROP TRIGGER fence_guard ON work`)
			return w
		}, 20},
	} {
		for _, level := range levels {
			t.Run(fmt.Sprintf("%s/%s", table.name, level), func(t *testing.T) {
				t.Parallel()
				w := table.setup(t, pgfence.WithGrace(5*time.Millisecond))
				for _, p := range points {
					late, landed, refused := pointRace(t, w, level, p.before, p.then, table.rounds, func(int) bool { return false })
					if late > 0 {
						t.Errorf("%s: %d writes landed after arm had returned", p.name, late)
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
	for mutant, names := range caughtAt {
		for _, level := range mutants[mutant].levels {
			t.Run(fmt.Sprintf("%s/%s", mutant, level), func(t *testing.T) {
				t.Parallel()
				w := setup(t)
				mutate(t, w, mutants[mutant].old, mutants[mutant].replacement)
				for _, p := range points {
					if !slices.Contains(names, p.name) {
						continue
					}
					if late, _, _ := pointRace(t, w, level, p.before, p.then, 500, func(late int) bool { return late > 0 }); late == 0 {
						t.Errorf("%s: 500 rounds did not catch it", p.name)
					}
				}
			})
		}
	}
}
