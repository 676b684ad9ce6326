package main

import (
	"strings"
	"testing"

	"github.com/fencegate/fencegate/internal/testenv"
)

// Text that others chose is printed escaped: a holder's name must not clear or retitle the operator's terminal.
func TestNoNameTellsTheTerminalWhatToDo(t *testing.T) {
	t.Parallel()
	pg := testenv.Postgres(t)
	vars := map[string]string{"FENCEGATE_POSTGRES_URL": pg.URL}
	runSQL(t, pg.URL, `SELECT fence.raise('orders/1', 5, NULL, E'alice \x1b[2J\x1b]0;root\x07')`,
		`CREATE TABLE "t`+"\x1b[2J"+`" (id int)`, `SELECT fence.protect('"t`+"\x1b[2J"+`"', under => 'orders/', mode => 'report')`)
	for _, args := range [][]string{{"fence", "ls"}, {"fence", "show", "orders/1"}, {"fence", "uncovered"}, {"doctor"}, {"protect", "no\x1b[2Jne", "--under", "a/"}} {
		_, stdout, stderr := cli(t, vars, args...)
		if shown := stdout + stderr; strings.ContainsAny(shown, "\x1b\x07") || !strings.Contains(shown, `\x1b[2`) {
			t.Errorf("%v: %q", args, shown)
		}
	}
}
