package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/robustness/history"
)

// command prints the grants without their seals, and makes psql connect by this client's own address of the gateway.
const command = `IFS=,
for grant in ${FENCE_GRANTS:-$FENCE_RESOURCE=$FENCE_TOKEN}; do printf '%s ' "${grant%%.*}"; done
echo
export PGHOST="$ROBUST_HOST" PGPORT="$ROBUST_PORT"
exec "$ROBUST_PSQL" -XAt 2>&1`

// Exit codes of `run` (docs/cli.md).
const (
	exitUsage   = 64
	exitHeld    = 75
	exitStale   = 76
	exitRefused = 77
	exitLost    = 79
)

// openRun makes psql under `fencegate run`. The lease begins and ends with the command, which reads its statements from
// standard input, one after the other, as from a script.
func openRun(e *env) (acquire, error) {
	if e.cfg.PSQL == "" || e.cfg.Program == "" {
		return nil, errors.New("psql and fencegate are needed")
	}
	return e.run, nil
}

func (e *env) run(ctx context.Context, a ask) (holding, error) {
	g := e.gateway()
	args := []string{"run", "--gateway", g.API, "--ttl", a.ttl.String(), "--holder", a.id, "--wait", a.wait(ctx).String()}
	for _, resource := range a.resources {
		args = append(args, "--resource", resource)
	}
	if e.dice.chance(2) {
		args = append(args, "--on-lost", "warn")
	}
	at, err := pgx.ParseConfig(g.PGURL)
	if err != nil {
		return holding{}, err
	}
	p, err := startProgram(e.cfg.Program, append(args, "--", "sh", "-c", command), append(os.Environ(),
		"FENCEGATE_TOKEN="+e.cfg.Token, "ROBUST_PSQL="+e.cfg.PSQL, "ROBUST_HOST="+at.Host, "ROBUST_PORT="+strconv.Itoa(int(at.Port)),
		"TMPDIR="+cmp.Or(e.cfg.Dir, os.TempDir()), // a killed program leaves a folder there
		"PGUSER="+at.User, "PGPASSWORD="+at.Password, "PGDATABASE="+at.Database, "PGSSLMODE=disable", "PGCONNECT_TIMEOUT=5"))
	if err != nil {
		return holding{}, failed(history.Failed, "", err)
	}
	h := &psql{program: p, stops: e.dice.chance(2)}
	t := &term{slow: true, deadline: func() time.Time { return time.Time{} }, release: h.release} // `run` does not report it
	line, err := p.line(ctx)
	for _, resource := range a.resources { // the command has several in an order of its own
		_, rest, _ := strings.Cut(" "+line, " "+fence.EscapeResource(resource)+"=")
		text, _, _ := strings.Cut(rest, " ")
		token, wrong := strconv.ParseInt(text, 10, 64)
		err = cmp.Or(err, wrong)
		t.grants = append(t.grants, fence.Grant{Resource: resource, Token: fence.Token(token)})
	}
	if err == nil {
		return holding{t, h}, nil
	}
	code, said := p.kill()
	f := failed(history.Unknown, "exit "+strconv.Itoa(code), fmt.Errorf("%w: %s", err, said))
	switch code {
	case exitHeld: // its message says: … is held by "c7.2-123"
		_, rest, _ := strings.Cut(said, `is held by "`)
		f.holder, _, _ = strings.Cut(rest, `"`)
		f.outcome, f.code = history.Refused, "held"
	case exitStale, exitRefused:
		f.outcome = history.Refused
	case exitLost, exitUsage:
		f.outcome = history.Failed
	}
	return holding{}, f
}

// psql is one `run` with its psql.
type psql struct {
	program *program
	steps   int
	stops   bool // pauses also stop `run`: it then neither renews nor notices the end of its lease
}

// answer is psql's output for one statement, without the server's messages. A FATAL end of the session that arrives
// right after an answer is printed before it, although the statement was executed.
type answer struct {
	lines  []string // the rows, or the command tag
	warned bool     // a COMMIT did not wait for its standby
}

// say sends psql a statement, and reads the answer; an ERROR is a [*pgconn.PgError]. Without a timely answer it kills
// psql, because the transaction would continue into the next one.
func (h *psql) say(ctx context.Context, sql string, args []any) (a answer, err error) {
	if h.program.over() {
		return a, errGone
	}
	for i, arg := range args {
		text := fmt.Sprint(arg)
		if s, ok := arg.(string); ok {
			text = "'" + strings.ReplaceAll(s, "'", "''") + "'"
		}
		sql = strings.Replace(sql, "$"+strconv.Itoa(i+1), text, 1)
	}
	h.steps++
	mark := fmt.Sprintf("@%d ", h.steps)
	_, err = fmt.Fprintf(h.program.in, "%s;\n\\echo '%s':ERROR :SQLSTATE\n", sql, mark)
	var printed []string
	for message := false; err == nil; {
		var line string
		if line, err = h.program.line(ctx); err != nil {
			break
		}
		if rest, ended := strings.CutPrefix(line, mark); ended {
			if failed, code, _ := strings.Cut(rest, " "); failed != "false" {
				return a, &pgconn.PgError{Severity: "ERROR", Code: code, Message: strings.Join(printed, " ")}
			}
			return a, nil
		}
		printed = append(printed, line)
		warns := strings.HasPrefix(line, "WARNING:  ")
		a.warned = a.warned || warns && strings.Contains(line, "canceling")
		message = warns || strings.HasPrefix(line, "FATAL:  ") ||
			message && (strings.HasPrefix(line, "DETAIL:  ") || strings.HasPrefix(line, "HINT:  "))
		if !message {
			a.lines = append(a.lines, line)
		}
	}
	h.program.kill()
	return a, err
}

func (h *psql) exec(ctx context.Context, want, sql string, args ...any) error {
	a, err := h.say(ctx, sql, args)
	if err != nil {
		return err
	}
	return tagged(want, strings.Join(a.lines, " "), a.warned)
}

func (h *psql) value(ctx context.Context, sql string, args ...any) (saw, wrong string, err error) {
	a, err := h.say(ctx, sql, args)
	if err != nil {
		return "", "", err
	}
	if len(a.lines) != 1 {
		return "", plain(fmt.Errorf("psql printed %d lines: %s", len(a.lines), strings.Join(a.lines, " | "))), nil
	}
	return a.lines[0], "", nil
}

func (h *psql) read(ctx context.Context, register string) (saw, wrong string, err error) {
	saw, wrong, err = h.value(ctx, selectRow, register[len(rowKind):])
	return saw, wrong, sqlFailure(err, false)
}

// write pauses in psql, or before its input, and then sometimes stops `run` too.
func (h *psql) write(ctx context.Context, w write) error {
	before := w.pause
	w.pause = func(ctx context.Context) {
		switch {
		case w.dice.chance(4):
			if d := w.nap(); d > 0 {
				_ = h.exec(ctx, "", "SELECT pg_sleep($1)", d.Seconds()) // an error aborts the transaction, as its COMMIT says
			}
			return
		case h.stops && h.program.Process.Signal(syscall.SIGSTOP) == nil:
			defer func() { _ = h.program.Process.Signal(syscall.SIGCONT) }()
		}
		before(ctx)
	}
	return transact(ctx, h, w, nil)
}

// release ends psql's input. psql and `run` then end, and `run` releases.
func (h *psql) release(ctx context.Context) error {
	_ = h.program.in.Close()
	switch code, said := h.program.ended(ctx); {
	case ctx.Err() != nil:
		return ctx.Err()
	case code == exitLost:
		return failed(history.Refused, "lease_lost", errors.New(said))
	case code != 0, strings.Contains(said, "could not release"):
		return failed(history.Unknown, "exit "+strconv.Itoa(code), errors.New(said))
	}
	return nil
}

// forget kills `run`. Its command ends with it, and the lease is left to its TTL.
func (h *psql) forget() { h.program.kill() }
