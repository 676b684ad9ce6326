package main

import (
	"fmt"
	"net/http"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgproto3"
)

// record makes a request that is in the transcript.
func (p *player) record(s *step, text string) {
	r := p.newRequest(s, text)
	r.describe(p.t)
	p.send(r)
	p.t.answer(r.answer)
	try(r.complete())
}

// quiet makes a request that is not in the transcript.
func (p *player) quiet(s *step, text string) *request {
	r := p.newRequest(s, text)
	p.send(r)
	return r
}

// send sends a request, and takes from the answer what is there.
func (p *player) send(r *request) {
	r.send(p.ctx, p.w)
	for _, t := range r.takes {
		p.vars[t[0]] = r.taken(t[1])
	}
}

// setup makes a request that is not in the transcript and has to succeed.
func (p *player) setup(s *step, text string) {
	r := p.quiet(s, text)
	if a := r.answer; a.status < http.StatusOK || a.status >= http.StatusMultipleChoices {
		failf("%d %s", a.status, a.body)
	}
	try(r.complete())
}

// await repeats a statement until it returns a row, or a request until the answer has all that it takes.
func (p *player) await(s *step, text string) {
	sql, isSQL := strings.CutPrefix(text, "sql ")
	for found := false; !found; try(p.ctx.Err()) {
		if isSQL {
			try(p.w.admin.QueryRow(p.ctx, "SELECT EXISTS ("+sql+")").Scan(&found))
		} else {
			found = p.quiet(s, text).complete() == nil
		}
	}
}

func (p *player) setKeys(name string, k keys) {
	p.vars[name+".name"], p.vars[name+".access"], p.vars[name+".secret"], p.vars[name+".session"] = k.name, k.access, k.secret, k.session
}

func (p *player) getKeys(name string) keys {
	if _, set := p.vars[name+".access"]; !set {
		failf("no lease or keys are named %q so far", name)
	}
	return keys{p.vars[name+".name"], p.vars[name+".access"], p.vars[name+".secret"], p.vars[name+".session"]}
}

// derive makes keys: others that are changed, or those of a token that the gateway may never have issued.
func (p *player) derive(s *step, text string) {
	parts := p.parts(s, text)
	name, base := halves(parts[0], " = ")
	var token uint64
	var resource, valid string
	if n, _ := fmt.Sscanf(base, "token %d of %s for %s", &token, &resource, &valid); n == 3 {
		p.setKeys(name, sessionOf(resource, token, time.Now().Add(must(time.ParseDuration(valid)))))
	} else {
		p.setKeys(name, p.getKeys(base))
	}
	for _, part := range parts[1:] {
		field, value, _ := strings.Cut(part, " ")
		if _, is := p.vars[name+"."+field]; !is {
			failf("keys have no %q, but name, access, secret and session", field)
		}
		p.vars[name+"."+field] = value
	}
}

// raw sends bytes to the port of the API or of S3.
func (p *player) raw(_ *step, text string) {
	port, text, _ := strings.Cut(text, " ")
	addr := map[string]string{"api": p.w.gateway.API, "s3": p.w.gateway.S3}[port]
	sent := must(unquoted(text))
	p.t.linef("=== %.60q", sent)
	p.t.answer(exchange(p.ctx, addr, http.MethodGet, []byte(sent), false))
}

// rows writes what a query returns, which the superuser runs.
func (p *player) rows(_ *step, sql string) {
	for _, line := range must(pgx.CollectRows(must(p.w.admin.Query(p.ctx, sql)), pgx.RowTo[string])) {
		p.t.linef("%s", line)
	}
}

// help writes the help of a command and of those under it.
func (p *player) help(command []string) {
	program := must(p.w.Program(p.ctx))
	out := string(must(exec.CommandContext(p.ctx, program, append(command, "--help")...).CombinedOutput()))
	p.t.part("fencegate " + strings.Join(command, " "))
	p.t.prefixed("", out)
	_, list, _ := strings.Cut(out, "Available Commands:\n")
	list, _, _ = strings.Cut(list, "\n\n")
	for line := range strings.Lines(list) {
		if name := strings.Fields(line)[0]; name != "help" && name != "completion" {
			p.help(append(slices.Clip(command), name))
		}
	}
}

// metrics writes the metrics' names with their help and types; values differ between runs.
func (p *player) metrics(s *step, _ string) {
	lines := map[string]bool{}
	for line := range strings.Lines(p.quiet(s, "api GET /metrics").answer.body) {
		line = strings.TrimSpace(line)
		if !strings.HasPrefix(line, "#") {
			line = line[:strings.IndexAny(line, "{ ")]
		}
		name := strings.TrimPrefix(strings.TrimPrefix(line, "# HELP "), "# TYPE ")
		if !strings.HasPrefix(name, "go_") && !strings.HasPrefix(name, "process_") {
			lines[line] = true
		}
	}
	for _, line := range sorted(lines) {
		p.t.linef("%s", line)
	}
}

// login opens a session with parameters, NAME=VALUE.
func (p *player) login(s *step, text string) {
	parameters := map[string]string{"database": p.w.pg.Database.Name}
	for _, part := range p.parts(s, text) {
		if name, value, found := strings.Cut(part, "="); found {
			parameters[name] = value
		} else if part != "" {
			failf("%q is not of the form NAME=VALUE", part)
		}
	}
	var title []string
	for _, name := range sorted(parameters) {
		title = append(title, name+"="+parameters[name])
	}
	p.connect(s, strings.Join(title, " "))
	p.vars["cancel"] = p.session().login(parameters)
}

// connect opens a connection without a startup message.
func (p *player) connect(_ *step, title string) {
	p.t.linef("=== %s", title)
	conn := dial(p.ctx, p.w.gateway.PG)
	p.sessions = append(p.sessions, &session{t: p.t, conn: conn, front: pgproto3.NewFrontend(conn, conn)})
}

// session returns the session that was opened last.
func (p *player) session() *session {
	if len(p.sessions) == 0 {
		failf("no session is open: login first")
	}
	return p.sessions[len(p.sessions)-1]
}

func onSession(do func(s *session, text string)) func(*player, *step, string) {
	return func(p *player, _ *step, text string) { do(p.session(), text) }
}

// logout ends all open sessions.
func (p *player) logout(*step, string) {
	p.session()
	for _, s := range p.sessions {
		s.close()
	}
	p.sessions = nil
}

// sendMessages sends messages of the extended protocol, and reads until the session is ready.
func (p *player) sendMessages(s *step, text string) {
	var messages []pgproto3.FrontendMessage
	for _, part := range p.parts(s, text) {
		if part != "" {
			messages = append(messages, newMessage(part))
		}
	}
	p.session().send(messages)
}

// packet sends bytes on a connection of their own, and reads some, or until the gateway closes it.
func (p *player) packet(s *step, text string) {
	parts := append(p.parts(s, text), "read 0")
	if len(parts) < 3 {
		failf("write: packet TITLE | BYTES, or packet TITLE | BYTES | read N")
	}
	p.connect(s, parts[0])
	open := p.session()
	p.sessions = p.sessions[:len(p.sessions)-1]
	open.packet(parts[1], must(strconv.Atoi(strings.TrimPrefix(parts[2], "read "))))
}

// undisturbed plays a session with a stale grant until it completes before the gateway, which checks the fences once a
// second, ends it.
func (p *player) undisturbed(s *step, _ string) {
	for range 10 {
		began := len(p.t.lines)
		p.play(s.under)
		_, later, _ := strings.Cut(strings.Join(p.t.lines[began:], ""), "< ReadyForQuery")
		if !strings.Contains(later, "severity: FATAL") {
			return
		}
		p.t.lines, p.t.steps = p.t.lines[:began], p.t.steps[:began]
	}
	failf("the gateway ended each session with a stale grant at once")
}
