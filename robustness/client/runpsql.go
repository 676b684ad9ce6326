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

	"github.com/fencegate/fencegate/robustness/history"
)

func init() { //nolint:gochecknoinits // a table of surfaces whose parts are in several files
	makers["run-psql"] = newRunPSQL
}

// runPSQL is psql under `fencegate run`. The lease begins and ends with the command, which reads its statements from
// standard input, one after the other, as from a script.
type runPSQL struct {
	rows

	env *env
}

func newRunPSQL(e *env) (surface, error) {
	if e.cfg.PSQL == "" || e.cfg.Program == "" {
		return nil, errors.New("psql and fencegate are needed")
	}
	return &runPSQL{env: e}, nil
}

func (r *runPSQL) close() {}

// command prints the lease's token, and makes psql connect by this client's own address of the gateway.
const command = `echo "token ${FENCE_TOKEN%%.*}"
export PGHOST="$ROBUST_HOST" PGPORT="$ROBUST_PORT"
exec "$ROBUST_PSQL" -XAtq 2>&1`

// releaseFailed is part of the message of `run` for a failed release.
const releaseFailed = "could not release"

// Exit codes of `run` (docs/cli.md).
const (
	exitUsage   = 64
	exitHeld    = 75
	exitStale   = 76
	exitRefused = 77
	exitLost    = 79
)

func (r *runPSQL) acquire(ctx context.Context, a ask) (holding, error) {
	g := r.env.cfg.Gateways[r.env.gateway()]
	args := []string{"run", "--gateway", g.API, "--resource", a.resource, "--ttl", a.ttl.String(), "--holder", a.id}
	if end, ok := ctx.Deadline(); ok && !a.try {
		args = append(args, "--wait", max(time.Until(end)-time.Second, time.Millisecond).Truncate(time.Millisecond).String())
	}
	if r.env.dice.chance(2) {
		args = append(args, "--on-lost", "warn")
	}
	environ, err := r.environ(g)
	if err != nil {
		return nil, err
	}
	p, err := startProgram(r.env.cfg.Program, append(args, "--", "sh", "-c", command), environ)
	if err != nil {
		return nil, &failure{outcome: history.Failed, err: err}
	}
	h := &psqlHolding{program: p, resource: a.resource}
	line, err := p.line(ctx)
	if err == nil {
		h.number, err = strconv.ParseInt(strings.TrimPrefix(line, "token "), 10, 64)
	}
	if err != nil {
		h.forget()
		return nil, runFailure(p, err)
	}
	h.stops = r.env.dice.chance(2)
	return h, nil
}

// environ is the environment that the program inherits.
func (r *runPSQL) environ(g Gateway) ([]string, error) {
	at, err := pgx.ParseConfig(g.PGURL)
	if err != nil {
		return nil, err
	}
	return append(os.Environ(), "FENCEGATE_TOKEN="+r.env.cfg.Token, "ROBUST_PSQL="+r.env.cfg.PSQL, "ROBUST_HOST="+at.Host,
		"TMPDIR="+cmp.Or(r.env.cfg.Dir, os.TempDir()), // a killed program leaves a folder there
		"ROBUST_PORT="+strconv.Itoa(int(at.Port)), "PGUSER="+at.User, "PGPASSWORD="+at.Password, "PGDATABASE="+at.Database,
		"PGSSLMODE=disable", "PGCONNECT_TIMEOUT=5"), nil
}

// runFailure classifies an acquisition that failed and ended `run`.
func runFailure(p *program, err error) error {
	f := &failure{outcome: history.Unknown, err: fmt.Errorf("%w: exit code %d: %s", err, p.code(), p.said())}
	switch p.code() {
	case exitHeld:
		f.outcome, f.code, f.holder = history.Refused, "held", holderIn(p.said())
	case exitStale, exitRefused:
		f.outcome, f.code = history.Refused, "exit "+strconv.Itoa(p.code())
	case exitLost, exitUsage:
		f.outcome, f.code = history.Failed, "exit "+strconv.Itoa(p.code())
	}
	return f
}

// holderIn extracts the holder from the message of `run`: … is held by "c7.2-123".
func holderIn(said string) string {
	_, rest, _ := strings.Cut(said, `is held by "`)
	name, _, _ := strings.Cut(rest, `"`)
	return name
}

// psqlHolding is one `run` with its psql.
type psqlHolding struct {
	program  *program
	resource string
	number   int64
	steps    int
	stops    bool // pauses also stop `run`: it then neither renews nor notices the end of its lease
}

func (h *psqlHolding) token() int64                { return h.number }
func (h *psqlHolding) deadline() time.Time         { return time.Time{} } // `run` does not report it
func (h *psqlHolding) renew(context.Context) error { return errNoRenewal }

// answer is psql's output for one statement.
type answer struct {
	lines    []string
	sqlstate string
	rows     string
	warned   bool
}

// say sends psql a statement, and reads the answer. Without a timely answer it kills psql, because the transaction
// would continue into the next one.
func (h *psqlHolding) say(ctx context.Context, sql string) (a answer, err error) {
	defer func() {
		if _, answered := errors.AsType[*failure](err); err != nil && !answered {
			h.program.kill()
		}
	}()
	h.steps++
	mark := fmt.Sprintf("@%d ", h.steps)
	if err := h.program.write(sql + ";\n\\echo '@" + strconv.Itoa(h.steps) + "' :ERROR :SQLSTATE :ROW_COUNT\n"); err != nil {
		return a, err
	}
	for {
		line, err := h.program.line(ctx)
		if err != nil {
			return a, err
		}
		if rest, ok := strings.CutPrefix(line, mark); ok {
			fields := strings.Fields(rest)
			if len(fields) == 3 {
				a.sqlstate, a.rows = fields[1], fields[2]
			}
			if len(fields) != 3 || fields[0] != "false" {
				return a, &failure{outcome: history.Failed, code: a.sqlstate, err: fmt.Errorf("psql: %s", strings.Join(a.lines, " "))}
			}
			return a, nil
		}
		a.warned = a.warned || strings.HasPrefix(line, "WARNING:") && strings.Contains(line, "canceling")
		a.lines = append(a.lines, line)
	}
}

// psqlFailure classifies say's error: an answer is an ERROR of a transaction that is rolled back; without one, psql or
// its connection is gone.
func psqlFailure(err error, committing bool) error {
	f, answered := errors.AsType[*failure](err)
	switch {
	case !answered && committing:
		return &failure{outcome: history.Unknown, err: err}
	case !answered:
		return &failure{outcome: history.Failed, err: err}
	case strings.HasPrefix(f.code, "ZF"):
		f.outcome = history.Refused
	}
	return f
}

func (h *psqlHolding) read(ctx context.Context, register string) (saw, wrong string, err error) {
	a, err := h.say(ctx, "SELECT value FROM judged.registers WHERE resource = "+quoted(register[len(rowKind):]))
	if err != nil {
		return "", "", psqlFailure(err, false)
	}
	values := withoutEnd(a.lines)
	if len(values) != 1 {
		return "", plain(fmt.Errorf("psql printed %d lines: %s", len(a.lines), strings.Join(a.lines, " | "))), nil
	}
	return values[0], "", nil
}

// withoutEnd removes a FATAL end of the session. If that arrives right after the answer, psql prints it before the
// answer's rows, although the statement was executed.
func withoutEnd(lines []string) (values []string) {
	ended := false
	for _, line := range lines {
		ended = strings.HasPrefix(line, "FATAL:  ") || ended && (strings.HasPrefix(line, "DETAIL:  ") || strings.HasPrefix(line, "HINT:  "))
		if !ended {
			values = append(values, line)
		}
	}
	return values
}

// write is a transaction, or a single statement. Either psql pauses, or its input does.
func (h *psqlHolding) write(ctx context.Context, w write) error {
	update := fmt.Sprintf("UPDATE judged.registers SET value = %s, token = %d WHERE resource = %s",
		quoted(w.id), h.number, quoted(h.resource))
	if w.chance(3) {
		w.pause(ctx)
		a, err := h.say(ctx, update)
		if err != nil {
			return psqlFailure(err, true)
		}
		return a.committed(a.rows == "1")
	}
	if err := h.prepare(ctx, w, update); err != nil {
		if _, answered := errors.AsType[*failure](err); answered {
			_, _ = h.say(ctx, "ROLLBACK")
		}
		return psqlFailure(err, false)
	}
	a, err := h.say(ctx, "COMMIT")
	if err != nil {
		return psqlFailure(err, true)
	}
	return a.committed(true)
}

// prepare begins a transaction and executes everything before COMMIT.
func (h *psqlHolding) prepare(ctx context.Context, w write, update string) error {
	if _, err := h.say(ctx, begin(w)); err != nil {
		return err
	}
	if err := h.wait(ctx, w); err != nil {
		return err
	}
	a, err := h.say(ctx, update)
	if err != nil {
		return err
	}
	if a.rows != "1" {
		return errNoRow
	}
	return h.wait(ctx, w)
}

func (a answer) committed(set bool) error {
	switch {
	case !set:
		return errNoRow
	case a.warned:
		return &failure{outcome: history.Unknown, code: "unreplicated", err: errors.New("the wait for the standby was cancelled")}
	}
	return nil
}

// wait is a pause of psql, or of its input, and sometimes of `run` too.
func (h *psqlHolding) wait(ctx context.Context, w write) error {
	if w.chance(4) {
		_, err := h.say(ctx, fmt.Sprintf("SELECT pg_sleep(%f)", w.nap().Seconds()))
		return err
	}
	if h.stops && h.program.signal(syscall.SIGSTOP) == nil {
		defer func() { _ = h.program.signal(syscall.SIGCONT) }()
	}
	w.pause(ctx)
	return nil
}

func quoted(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }

// release ends psql's input. psql and `run` then end, and `run` releases.
func (h *psqlHolding) release(ctx context.Context) error {
	h.program.hangUp()
	if !h.program.ended(ctx) {
		return &failure{outcome: history.Unknown, err: ctx.Err()}
	}
	code, said := h.program.code(), h.program.said()
	switch {
	case code == exitLost:
		return &failure{outcome: history.Refused, code: "lease_lost", err: errors.New(said)}
	case code != 0, strings.Contains(said, releaseFailed):
		return &failure{outcome: history.Unknown, code: "exit " + strconv.Itoa(code), err: errors.New(said)}
	}
	return nil
}

// forget kills `run`. Its command ends with it, and the lease is left to its TTL.
func (h *psqlHolding) forget() { h.program.kill() }
