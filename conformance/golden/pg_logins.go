package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5/pgproto3"
)

// playLogin logs in in every way, and sends invalid logins.
func playLogin(ctx context.Context, w *world, b *book) error {
	t := &pgTalk{ctx: ctx, w: w, b: b}
	b.part("logins")
	for _, parameters := range [][]string{
		{"user", "app"},
		{"user", "app_md5"},
		{"user", "app_clear"},
		{"user", "app_trust", "application_name", "golden", "client_encoding", "UTF8"},
		{"user", "nobody"},
		{"user", "nobody_trust"},
		{"user", "app_trust", "database", "postgres"},
		{"user", "app_trust", "database", "nowhere"},
		{"user", "app_trust", "database", ""},
		{},
		{"user", "app_trust", "nonsense", "1"},
		{"user", "app_trust", "options", "-c nonsense=1"},
		{"user", "app_trust", "options", "-c fence.nonsense=1"},
		{"user", "app_trust", "options", "-c work_mem=1MB -c application_name=x"},
		{"user", "stranger_trust"},
		{"user", "app_trust", "replication", "true"},
		{"user", "app_trust", "_pq_.something", "1"},
	} {
		t.open(parameters...).close()
	}
	b.part("a wrong password")
	s := t.open("user", "app", "application_name", "wrong")
	s.close()
	b.part("before a session")
	code := func(n uint32) []byte { return binary.BigEndian.AppendUint32([]byte{0, 0, 0, 8}, n) }
	t.packet("SSLRequest", code(80877103), 1)
	t.packet("GSSENCRequest", code(80877104), 1)
	t.packet("SSLRequest, then GSSENCRequest", append(code(80877103), code(80877104)...), 2)
	cancel := binary.BigEndian.AppendUint32(append([]byte{0, 0, 0, 16}, code(80877102)[4:]...), 1)
	t.packet("CancelRequest of nobody", append(cancel, 0, 0, 0, 1), 0)
	for _, version := range []uint32{2 << 16, 4 << 16} {
		t.packet(fmt.Sprintf("protocol %d.%d", version>>16, version&0xffff), startupOf(version, "user", "app_trust", "database", database), 0)
	}
	t.packet("a startup without its end", []byte("\x00\x00\x00\x0e\x00\x03\x00\x00user\x00a"), 0)
	t.packet("a startup that is too long", []byte("\x7f\xff\xff\xff\x00\x03\x00\x00"), 0)
	t.packet("a startup that is too short", []byte("\x00\x00\x00\x04"), 0)
	t.packet("HTTP", []byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n"), 0)
	b.part("protocol 3.2")
	t.minor()
	return t.err
}

// startupOf is a startup message of any version.
func startupOf(version uint32, parameters ...string) []byte {
	text := strings.Join(parameters, "\x00") + "\x00\x00"
	out := binary.BigEndian.AppendUint32(nil, uint32(8+len(text)))
	return append(binary.BigEndian.AppendUint32(out, version), text...)
}

// minor logs in with a minor version that PostgreSQL may not know.
func (t *pgTalk) minor() {
	conn, err := dial(t.ctx, t.w.pgPort)
	if err != nil {
		t.err = err
		return
	}
	t.b.linef("=== protocol 3.2")
	s := &session{t: t, conn: conn, front: pgproto3.NewFrontend(conn, conn)}
	defer s.close()
	if _, t.err = conn.Write(startupOf(3<<16|2, "user", "app_trust", "database", database)); t.err == nil {
		s.ready()
	}
}

// grantOf returns the startup options that present a grant.
func grantOf(resource, presented string) string {
	return "-c fence.resource=" + strings.ReplaceAll(resource, " ", "%20") + " -c fence.token=" + presented
}

// guarded creates a guarded table.
func (w *world) guarded(ctx context.Context, table, under string) error {
	return w.exec(ctx, database, "CREATE TABLE "+table+" (id int PRIMARY KEY, status text)", fmt.Sprintf("SELECT fence.protect('%s', under => '%s')", table, under))
}

// playGrants writes to a guarded table with every kind of grant.
func playGrants(ctx context.Context, w *world, b *book) error {
	t := &pgTalk{ctx: ctx, w: w, b: b}
	if err := w.guarded(ctx, "pg_grants", "pg-grants/"); err != nil {
		return err
	}
	if err := w.exec(ctx, database, "CREATE TABLE pg_grants_rows (id int PRIMARY KEY, status text)",
		"SELECT fence.protect('pg_grants_rows', per_row => $$'pg-grants/' || id$$)", "CREATE TABLE pg_grants_one (id int)", "SELECT fence.protect('pg_grants_one', resource => 'pg-grants/1')"); err != nil {
		return err
	}
	stale, current, err := w.pair(ctx, "pg-grants/1")
	if err != nil {
		return err
	}
	elsewhere, err := w.acquire(ctx, "pg-other/1")
	if err != nil {
		return err
	}
	play := func(s *session) *session {
		defer s.close()
		s.query("INSERT INTO pg_grants VALUES (1, 'new') ON CONFLICT DO NOTHING")
		s.query("INSERT INTO pg_grants_rows VALUES (1, 'new'), (2, 'new') ON CONFLICT DO NOTHING")
		s.query("INSERT INTO pg_grants_rows VALUES (1, 'new') ON CONFLICT DO NOTHING")
		s.query("UPDATE pg_grants_rows SET id = 3 WHERE id = 1")
		s.query("DELETE FROM pg_grants_one")
		s.query("TRUNCATE pg_grants_rows")
		s.query("SELECT count(*) FROM pg_grants")
		s.query("SELECT fence.check()")
		return s
	}
	write := func(title string, parameters ...string) {
		b.part(title)
		t.undisturbed(func() *session { return play(t.open(append([]string{"user", "app_trust"}, parameters...)...)) })
	}
	write("no grant")
	write("the current grant", "options", grantOf("pg-grants/1", current.Grant))
	write("the current grant as parameters", "fence.resource", "pg-grants/1", "fence.token", current.Grant)
	write("a stale grant", "options", grantOf("pg-grants/1", stale.Grant))
	write("the stale seal", "options", grantOf("pg-grants/1", current.Token+"."+stale.seal()))
	write("a token that was never issued", "options", grantOf("pg-grants/1", "99."+current.seal()))
	write("the seal alone", "options", grantOf("pg-grants/1", "0."+current.seal()))
	write("no seal", "options", grantOf("pg-grants/1", current.Token))
	write("nonsense", "options", grantOf("pg-grants/1", "nonsense"))
	write("a token alone", "options", "-c fence.token="+current.Grant)
	write("a resource alone", "options", "-c fence.resource=pg-grants/1")
	write("of another resource", "options", grantOf("pg-other/1", elsewhere.Grant))
	write("of a resource without a fence", "options", grantOf("pg-grants/nothing", current.Grant))
	write("of no resource", "options", grantOf("*", current.Grant))
	write("several", "options", fmt.Sprintf("-c fence.grants=pg-grants/1=%s,pg-other/1=%s", current.Grant, elsewhere.Grant))
	t.uses(stale, current)
	return t.err
}

// uses presents grants in transactions, and makes requests that need none.
func (t *pgTalk) uses(stale, current lease) {
	t.b.part("fence.use")
	s := t.open("user", "app_trust")
	for _, grant := range []string{current.Grant, stale.Grant, "nonsense", current.Token} {
		s.query("BEGIN")
		s.query(fmt.Sprintf("SELECT fence.use('pg-grants/1', '%s')", grant))
		s.query("INSERT INTO pg_grants VALUES (7, 'used') ON CONFLICT DO NOTHING")
		s.query("SAVEPOINT a")
		s.query("ROLLBACK TO a")
		s.query("COMMIT")
	}
	s.close()
	t.b.part("the views and functions that anyone may ask")
	s = t.open("user", "app_trust")
	for _, sql := range []string{
		"SELECT * FROM fence.protected WHERE guarded::text LIKE 'pg_grants%' ORDER BY 1", "SELECT * FROM fence.uncovered", "SELECT resource, token FROM fence.resources", "SELECT fence.raise('x', 1, NULL, 'x')",
		"SELECT fence.protect('pg_grants')", "UPDATE fence.resources SET token = 1", "SELECT * FROM objects.versions", "SELECT fence.arm('x', 1, NULL, 'x')",
	} {
		s.query(sql)
	}
	s.close()
}

// playPolicies logs in under each policy.
func playPolicies(ctx context.Context, w *world, b *book) error {
	t := &pgTalk{ctx: ctx, w: w, b: b}
	if err := w.guarded(ctx, "t_policies", "pg-policies/"); err != nil {
		return err
	}
	if err := w.exec(ctx, database, "CREATE TABLE t_policies_free (id int)"); err != nil {
		return err
	}
	stale, current, err := w.pair(ctx, "pg-policies/1")
	if err != nil {
		return err
	}
	for _, user := range []string{"reader_trust", "strict_trust", "app_trust"} {
		for _, options := range []string{
			"", grantOf("pg-policies/1", current.Grant), grantOf("pg-policies/1", stale.Grant), grantOf("pg-policies/1", "99."+current.seal()), grantOf("pg-policies/1", "nonsense"),
			grantOf("pg-policies/nothing", current.Grant), "-c fence.token=", "-c fence.resource=pg-policies/1", fmt.Sprintf("-c fence.grants=pg-policies/1=%s", stale.Grant),
		} {
			b.part(user + " " + options)
			parameters := []string{"user", user}
			if options != "" {
				parameters = append(parameters, "options", options)
			}
			t.undisturbed(func() *session {
				s := t.open(parameters...)
				defer s.close()
				s.query("SHOW default_transaction_read_only")
				s.query("INSERT INTO t_policies VALUES (1, 'new') ON CONFLICT DO NOTHING")
				s.query("INSERT INTO t_policies_free VALUES (1)")
				return s
			})
		}
	}
	b.part("a stranger's physical replication")
	t.open("user", "strict_trust", "replication", "true").close()
	return t.err
}
