package main

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
)

// playLeases acquires, renews and releases leases.
func playLeases(ctx context.Context, w *world, b *book) error {
	t := &apiTalk{ctx: ctx, w: w, b: b}
	b.part("POST /v1/leases")
	one := t.do("POST", "/v1/leases", `{"resource":"g-leases/1","ttl":"5m","holder":"golden"}`).lease()
	t.do("POST", "/v1/leases", `{"resource":"g-leases/1","ttl":"5m","holder":"another"}`)
	t.do("POST", "/v1/leases", `{"resource":"g-leases/1","ttl":"5m","wait":"50ms"}`)
	t.do("POST", "/v1/leases", `{"resource":"g-leases/2"}`)
	for _, body := range []string{
		``, `{}`, `[]`, `"x"`, `{"resource":""}`, `{"resource":"*"}`, `{"resource":"a*b"}`, `{"resource":"34.8942fe7f8942fe7f8942fe7f8942fe7f"}`, `{"resource":1}`, `{"resource":"x","resource":"y"}`,
		`{"resource":"g-leases/3","ttl":"1ns"}`, `{"resource":"g-leases/3","ttl":"2h"}`, `{"resource":"g-leases/3","ttl":"-1s"}`, `{"resource":"g-leases/3","ttl":"nonsense"}`, `{"resource":"g-leases/3","ttl":5}`,
		`{"resource":"g-leases/3","wait":"1000h"}`, `{"resource":"g-leases/3","wait":"-1s"}`, `{"resource":"g-leases/3","something":1}`, `{"resource":"g-leases/3"} {}`, `{"resource":"g-leases/3"`,
		`{"resource":"g-leases/3","holder":"` + strings.Repeat("h", 201) + `"}`, `{"resource":"` + strings.Repeat("r", 513) + `"}`, `{"resource":"g-leases/\u0000"}`, "{\"resource\":\"\xff\"}",
	} {
		t.do("POST", "/v1/leases", body)
	}
	b.part("POST /v1/leases/renew, credentials, release")
	handle := func(h string) string { return fmt.Sprintf(`{"handle":%q}`, h) }
	for _, path := range []string{"/v1/leases/renew", "/v1/leases/credentials", "/v1/leases/release", "/v1/leases/release", "/v1/leases/renew", "/v1/leases/credentials"} {
		t.do("POST", path, handle(one.Handle))
	}
	for _, path := range []string{"/v1/leases/renew", "/v1/leases/credentials", "/v1/leases/release"} {
		for _, body := range []string{``, `{}`, `{"handle":""}`, `{"handle":"nonsense"}`, handle(one.Handle[:len(one.Handle)-4] + "AAAA"), `{"handle":1}`, `{"something":"x"}`} {
			t.do("POST", path, body)
		}
	}
	b.part("a lease that is taken")
	two := t.do("POST", "/v1/leases", `{"resource":"g-leases/4","ttl":"5m","holder":"golden"}`).lease()
	t.do("POST", "/v1/resources/g-leases%2F4/revoke", `{"holder":"ops: golden"}`)
	for _, path := range []string{"/v1/leases/renew", "/v1/leases/credentials", "/v1/leases/release"} {
		t.do("POST", path, handle(two.Handle))
	}
	t.do("POST", "/v1/leases", `{"resource":"g-leases/4","ttl":"5m"}`)
	playSeveral(t)
	return t.err
}

// playSeveral acquires several leases, all or none.
func playSeveral(t *apiTalk) {
	t.b.part("POST /v1/leases/all")
	t.do("POST", "/v1/leases/all", `{"resources":["g-all/2","g-all/1"],"ttl":"5m","holder":"golden"}`)
	t.do("POST", "/v1/leases/all", `{"resources":["g-all/0","g-all/1","g-all/3"],"ttl":"5m","holder":"another"}`)
	t.do("POST", "/v1/leases/all", `{"resources":["g-all/0","g-all/1"],"ttl":"5m","wait":"50ms"}`)
	t.do("GET", "/v1/resources?prefix=g-all/", "")
	for _, body := range []string{
		``, `{}`, `[]`, `{"resources":[]}`, `{"resources":"g-all/4"}`, `{"resources":[1]}`, `{"resources":["g-all/4","g-all/4"]}`, `{"resources":["g-all/4",""]}`, `{"resources":["g-all/4","*"]}`,
		`{"resources":["g-all/4"],"ttl":"-1s"}`, `{"resources":["g-all/4"],"wait":"1000h"}`, `{"resources":["g-all/4"],"something":1}`, `{"resource":"g-all/4"}`,
		`{"resources":["` + strings.Join(slices.Repeat([]string{"x"}, 101), `","`) + `"]}`,
	} {
		t.do("POST", "/v1/leases/all", body)
	}
}

// playResources inspects resources and revokes them.
func playResources(ctx context.Context, w *world, b *book) error {
	t := &apiTalk{ctx: ctx, w: w, b: b}
	for _, name := range []string{"g-resources/1", "g-resources/2", "g-resources/ä b", "g-resources/a%2Fb"} {
		if _, err := w.acquire(ctx, name); err != nil {
			return err
		}
	}
	b.part("GET /v1/resources")
	for _, query := range []string{
		"prefix=g-resources/", "prefix=g-resources/&limit=2", "prefix=g-resources/&limit=2&after=g-resources/2", "prefix=g-nothing", "prefix=g-resources/&limit=0", "limit=x", "limit=100000",
		"prefix=%FF", "prefix=*", "after=%00", "something=1&prefix=g-nothing", "prefix=g-nothing&prefix=x",
	} {
		t.do("GET", "/v1/resources?"+query, "")
	}
	b.part("GET /v1/resources/{resource}")
	for _, name := range []string{"g-resources%2F1", "g-resources/1", "g-resources%2F%C3%A4%20b", "g-resources%2Fa%252Fb", "g-resources%2Fnothing", "*", "%FF", "%00", strings.Repeat("r", 513), "", "g-resources%2F1/something", "g-resources%2F1?x=1"} {
		t.do("GET", "/v1/resources/"+name, "")
	}
	b.part("POST /v1/resources/{resource}/revoke")
	for _, call := range [][2]string{
		{"g-resources%2F1/revoke", `{"holder":"ops: golden"}`},
		{"g-resources%2F1/revoke", `{}`},
		{"g-resources%2F1/revoke", ``},
		{"g-resources/2/revoke", `{"holder":"ops"}`},
		{"g-resources%2Fnothing/revoke", `{}`},
		{"*/revoke", `{}`},
		{"g-resources%2F1/revoke", `{"holder":"` + strings.Repeat("h", 201) + `"}`},
		{"g-resources%2F1/revoke", `{"something":1}`},
		{"g-resources%2F1", `{}`},
		{"g-resources%2F1/something", `{}`},
		{"/revoke", `{}`},
	} {
		t.do("POST", "/v1/resources/"+call[0], call[1])
	}
	t.do("GET", "/v1/resources/g-resources%2F1", "")
	return t.err
}

// playBuckets creates and changes buckets.
func playBuckets(ctx context.Context, w *world, b *book) error {
	t := &apiTalk{ctx: ctx, w: w, b: b}
	b.part("PUT /v1/buckets/{bucket}")
	for _, call := range [][2]string{
		{"g-buckets-1", `{"rule":"prefix:1","keep":"30d"}`},
		{"g-buckets-1", `{"rule":"prefix:1","keep":"30d"}`},
		{"g-buckets-1", `{"rule":"key"}`},
		{"g-buckets-1", `{"keep":"3"}`},
		{"g-buckets-1", `{"keep":"all"}`},
		{"g-buckets-1", `{"keep":"none"}`},
		{"g-buckets-1", `{}`},
		{"g-buckets-2", `{"rule":"monotone:prefix:2"}`},
		{"g-buckets-3", `{"rule":"none"}`},
		{"g-buckets-4", `{"rule":"bucket"}`},
		{"g-buckets-5", `{}`},
		{"g-buckets-5", `{"keep":"3"}`},
		{"g-buckets-5", `{"rule":"nonsense"}`},
		{"g-buckets-5", `{"rule":"prefix:0"}`},
		{"g-buckets-5", `{"rule":"prefix:x"}`},
		{"g-buckets-5", `{"rule":""}`},
		{"g-buckets-5", `{"rule":"key","keep":"nonsense"}`},
		{"g-buckets-5", `{"rule":"key","keep":"-1"}`},
		{"g-buckets-5", `{"rule":"key","keep":"0"}`},
		{"g-buckets-5", `{"rule":"key","something":1}`},
		{"g-buckets-5", ``},
		{"G", `{"rule":"key"}`},
		{"a..b", `{"rule":"key"}`},
		{"%FF", `{"rule":"key"}`},
	} {
		t.do("PUT", "/v1/buckets/"+call[0], call[1])
	}
	b.part("GET /v1/buckets, /v1/buckets/{bucket}")
	for _, path := range []string{"/g-buckets-1", "/g-nowhere", "/G", "?after=g-buckets-&limit=2", "?after=g-bucketsz&limit=0", "?limit=x", "/g-buckets-1/", "/g-buckets-1/something"} {
		t.do("GET", "/v1/buckets"+path, "")
	}
	objects := &talk{ctx: ctx, w: w, b: b}
	t.rules(objects)
	if objects.err != nil {
		return objects.err
	}
	return t.err
}

// rules changes the rules of prefixes, and of a bucket that contains an object.
func (t *apiTalk) rules(objects *talk) {
	t.b.part("/v1/buckets/{bucket}/rules")
	for _, call := range [][3]string{
		{"PUT", "g-buckets-1/rules", `{"prefix":"scratch/","rule":"none"}`},
		{"PUT", "g-buckets-1/rules", `{"prefix":"scratch/","rule":"key"}`},
		{"PUT", "g-buckets-1/rules", `{"prefix":"a","rule":"monotone"}`},
		{"PUT", "g-buckets-1/rules", `{"prefix":"","rule":"none"}`},
		{"PUT", "g-buckets-1/rules", `{"prefix":"x/","rule":"nonsense"}`},
		{"PUT", "g-buckets-1/rules", `{"prefix":"x/"}`},
		{"PUT", "g-buckets-1/rules", `{"rule":"none"}`},
		{"PUT", "g-nowhere/rules", `{"prefix":"x/","rule":"none"}`},
		{"DELETE", "g-buckets-1/rules?prefix=a", ""},
		{"DELETE", "g-buckets-1/rules?prefix=a", ""},
		{"DELETE", "g-buckets-1/rules", ""},
		{"DELETE", "g-nowhere/rules?prefix=a", ""},
		{"GET", "g-buckets-1/rules", ""},
		{"GET", "g-buckets-1", ""},
	} {
		t.do(call[0], "/v1/buckets/"+call[1], call[2])
	}
	t.b.part("with an object in it")
	objects.must(root, "PUT", "/g-buckets-3/1/object", body("hello"))
	t.do("PUT", "/v1/buckets/g-buckets-3", `{"rule":"key"}`)
	t.do("PUT", "/v1/buckets/g-buckets-3", `{"rule":"none","keep":"all"}`)
	t.do("PUT", "/v1/buckets/g-buckets-3/rules", `{"prefix":"1/","rule":"key"}`)
	t.do("PUT", "/v1/buckets/g-buckets-3/rules", `{"prefix":"2/","rule":"key"}`)
}

// notInSQL are commands that a request, or its login, may not run.
var notInSQL = []string{
	"BEGIN", "COMMIT", "ROLLBACK", "SAVEPOINT a", "PREPARE TRANSACTION 'x'", "SET ROLE postgres", "RESET ALL", "SET fence.token = 'x'", "SET SESSION AUTHORIZATION x", "DISCARD ALL",
	"SET client_encoding = 'latin1'", "COPY g_sql TO STDOUT", "COPY g_sql FROM STDIN", "LISTEN x", "VACUUM g_sql", "DROP TABLE g_sql", "GRANT fence_owner TO golden_sql", "SELECT 1; SELECT 2",
	"SELECT set_config('fence.token', '', false)", "DO $$ BEGIN COMMIT; END $$", "SELECT fence.protected.* FROM fence.protected", "ALTER ROLE golden_sql PASSWORD 'x'",
}

// playSQL runs statements over HTTP.
func playSQL(ctx context.Context, w *world, b *book) error {
	t := &apiTalk{ctx: ctx, w: w, b: b}
	if err := w.exec(ctx, database,
		"CREATE TABLE g_sql (id int PRIMARY KEY, total numeric, status text, at timestamptz, tags text[], doc jsonb, big bigint, flag bool, bytes bytea, f float8)",
		"SELECT fence.protect('g_sql', under => 'g-sql/')", "CREATE TABLE g_sql_free (id int)"); err != nil {
		return err
	}
	stale, current, err := w.pair(ctx, "g-sql/1")
	if err != nil {
		return err
	}
	elsewhere, err := w.acquire(ctx, "g-sql-other/1")
	if err != nil {
		return err
	}
	with := func(resource, grant string) map[string]string {
		return apiHeader("Fencing-Resource", url.PathEscape(resource), "Fencing-Token", grant)
	}
	good := with(current.Resource, current.Grant)
	run := func(header map[string]string, statements string) {
		t.with(header, "POST", "/v1/sql", `{"statements":[`+statements+`]}`)
	}
	b.part("under the grant")
	run(good, `{"sql":"INSERT INTO g_sql VALUES ($1,$2,$3,$4,$5,$6,$7,$8,$9,$10)","args":[1,"12.50","new","2026-01-02T03:04:05Z",["a","b"],{"k":[1,null]},9007199254740993,true,"\\x00ff",1.5]},{"sql":"SELECT * FROM g_sql"}`)
	run(good, `{"sql":"UPDATE g_sql SET status = $1 WHERE id = $2 RETURNING id, status","args":["paid",1]}`)
	run(good, `{"sql":"SELECT 1/0"}`)
	run(good, `{"sql":"SELECT 1"},{"sql":"INSERT INTO g_sql (id) VALUES (1)"}`)
	run(good, `{"sql":"SELECT nonsense"}`)
	run(good, `{"sql":"SELECT $1::int","args":["x"]}`)
	run(good, `{"sql":"SELECT $1::int"}`)
	run(good, `{"sql":"SELECT 1","args":[1]}`)
	run(good, `{"sql":"SELECT NULL, 'NaN'::float8, 'x'::name, '{}'::json, now() - now(), 1::int2, 1::oid"}`)
	run(good, `{"sql":"SELECT 1 WHERE false"},{"sql":""},{"sql":"  -- nothing"}`)
	for _, sql := range notInSQL {
		run(good, fmt.Sprintf(`{"sql":%q}`, sql))
	}
	b.part("under other grants")
	const insert = `{"sql":"INSERT INTO g_sql (id) VALUES (2)"}`
	run(with(stale.Resource, stale.Grant), insert)
	run(with(current.Resource, current.Token), insert)
	run(with(current.Resource, "99."+current.seal()), insert)
	run(with(current.Resource, "nonsense"), insert)
	run(with(elsewhere.Resource, elsewhere.Grant), insert)
	run(with("g-sql/nothing", current.Grant), insert)
	run(with("*", current.Grant), insert)
	run(apiHeader(), insert)
	run(apiHeader(), `{"sql":"INSERT INTO g_sql_free VALUES (1)"}`)
	run(apiHeader("Fencing-Resource", "g-sql%2F1"), insert)
	run(apiHeader("Fencing-Token", current.Grant), insert)
	b.part("malformed")
	for _, text := range []string{
		``, `{}`, `{"statements":[]}`, `{"statements":null}`, `{"statements":[{}]}`, `{"statements":[{"sql":1}]}`, `{"statements":[{"sql":"SELECT 1","something":1}]}`, `{"statements":[{"sql":"SELECT '\u0000'"}]}`,
		`{"statements":[` + strings.TrimSuffix(strings.Repeat(`{"sql":"SELECT 1"},`, 101), ",") + `]}`,
	} {
		t.with(good, "POST", "/v1/sql", text)
	}
	t.with(good, "POST", "/v1/sql", `{"statements":[{"sql":"`+strings.Repeat("x", 1<<20)+`"}]}`)
	return t.err
}

// playRequests makes requests that need no state.
func playRequests(ctx context.Context, w *world, b *book) error {
	t := &apiTalk{ctx: ctx, w: w, b: b}
	b.part("for operators")
	for _, path := range []string{"/healthz", "/readyz", "/openapi.json", "/v1/endpoints", "/v1/sessions", "/", "/v1", "/v1/nothing", "/metrics/x", "/healthz/"} {
		t.do("GET", path, "")
		t.do("HEAD", path, "")
	}
	t.do("POST", "/v1/sessions/nothing/end", `{"by":"golden"}`)
	t.do("POST", "/v1/sessions/nothing/end", `{"by":"`+strings.Repeat("b", 201)+`"}`)
	t.do("POST", "/v1/sessions//end", `{}`)
	b.part("methods and the token, route by route")
	routes := []string{
		"/healthz", "/readyz", "/metrics", "/openapi.json", "/v1/endpoints", "/v1/leases", "/v1/leases/renew", "/v1/leases/release", "/v1/leases/credentials", "/v1/resources", "/v1/resources/x",
		"/v1/resources/x/revoke", "/v1/buckets", "/v1/buckets/x", "/v1/buckets/x/rules", "/v1/sql", "/v1/sessions", "/v1/sessions/x/end", "/nothing",
	}
	for _, route := range routes {
		for _, method := range []string{"GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"} {
			var cells []string
			for _, header := range []map[string]string{apiHeader("Content-Length", "0"), {}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic x"}} {
				r, err := w.call(ctx, method, route, "", header)
				if err != nil {
					return err
				}
				cells = append(cells, fmt.Sprintf("%d %s", r.status, r.header.Get("Www-Authenticate")+codeOf(r)))
			}
			b.linef("%-8s %-28s token: %s, none: %s, another: %s, Basic: %s", method, route, cells[0], cells[1], cells[2], cells[3])
		}
	}
	b.part("other answers in full")
	t.with(map[string]string{}, "GET", "/v1/resources", "")
	t.with(map[string]string{"Authorization": "Bearer wrong"}, "GET", "/metrics", "")
	t.do("PATCH", "/v1/leases", "")
	t.with(map[string]string{"Authorization": "Bearer " + bearer}, "POST", "/v1/leases", `{"resource":"g-requests/1"}`)
	t.with(apiHeader("Content-Type", "text/plain"), "POST", "/v1/leases", `{"resource":"g-requests/2"}`)
	t.with(apiHeader("Content-Type", "application/json; charset=utf-8"), "POST", "/v1/leases", `{"resource":"g-requests/3"}`)
	t.with(apiHeader("Content-Type", "application/json; charset=latin1"), "POST", "/v1/leases", `{"resource":"g-requests/4"}`)
	t.do("POST", "/v1/leases", `{"holder":"`+strings.Repeat("x", 1<<20)+`"}`)
	b.part("what is no request")
	for _, text := range []string{"nonsense\r\n\r\n", "GET / HTTP/9.9\r\n\r\n", "GET / HTTP/1.1\r\n\r\n", "GET /healthz HTTP/1.0\r\n\r\n", "GET / HTTP/1.1\r\nHost: a\r\nX: " + strings.Repeat("x", 70<<10) + "\r\n\r\n"} {
		b.linef("=== %.60q", text)
		r, err := exchange(ctx, w.api, http.MethodGet, []byte(text))
		if err != nil {
			return err
		}
		b.answer(r)
	}
	return t.err
}

// codeOf returns the code of a problem.
func codeOf(r *reply) string {
	_, rest, found := strings.Cut(r.body, `"code":"`)
	code, _, _ := strings.Cut(rest, `"`)
	if !found {
		return ""
	}
	return " " + code
}

// playMetrics lists the metrics with their labels; values differ between runs.
func playMetrics(ctx context.Context, w *world, b *book) error {
	r, err := w.call(ctx, "GET", "/metrics", "", nil)
	if err != nil {
		return err
	}
	seen := map[string]bool{}
	var lines []string
	for line := range strings.Lines(r.body) {
		line = strings.TrimSpace(line)
		switch {
		case strings.Contains(line, " go_"), strings.HasPrefix(line, "go_"), strings.Contains(line, " process_"), strings.HasPrefix(line, "process_"):
			continue
		case !strings.HasPrefix(line, "#"):
			if line, _, _ = strings.Cut(line, "{"); strings.Contains(line, " ") {
				line, _, _ = strings.Cut(line, " ")
			}
		}
		if !seen[line] {
			seen[line] = true
			lines = append(lines, line)
		}
	}
	slices.Sort(lines)
	for _, line := range lines {
		b.linef("%s", line)
	}
	return nil
}
