package main

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/fence/pgfence"
	"github.com/fencegate/fencegate/internal/testenv"
	"github.com/fencegate/fencegate/lock/pglock"
)

// use presents a grant.
func use(t *testing.T, url, resource, token string) error {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(t.Context())) }()
	_, err = conn.Exec(t.Context(), `SELECT fence.use($1, $2)`, resource, token)
	return pgfence.Translate(err)
}

func TestPatternsOfBareTokensAreAllowedListedAndTakenAway(t *testing.T) {
	t.Parallel()
	pg := testenv.Postgres(t)
	vars := map[string]string{"FENCEGATE_POSTGRES_URL": pg.As(t, "fence_owner"), "FENCEGATE_UNSEALED": "true"}
	gateway := map[string]string{"FENCEGATE_POSTGRES_URL": pg.GatewayURL}
	present := func() error { return use(t, pg.WriterURL, "jobs/1", "35") }
	refused := func(vars map[string]string, code int, says string, args ...string) {
		t.Helper()
		if got, _, stderr := cli(t, vars, args...); got != code || !strings.Contains(stderr, says) {
			t.Errorf("%v: exit code %d, %s; want %d, %q", args, got, stderr, code, says)
		}
	}
	refused(vars, exitUsage, "--unsealed", "fence", "allow", "jobs/*")
	refused(vars, exitUsage, "pattern is empty", "fence", "allow", "", "--unsealed")
	refused(vars, exitUsage, "control character", "fence", "allow", "a\nb", "--unsealed")
	refused(gateway, exitForbidden, "permission denied", "fence", "allow", "jobs/*", "--unsealed")
	if out := ok(t, gateway, "fence", "allowed"); out != "" {
		t.Errorf("refused, and allowed: %q", out)
	}
	if err := present(); !errors.Is(err, fence.ErrNeverIssued) {
		t.Errorf("a bare token of a pattern that is not allowed: %v", err)
	}
	for range 2 {
		ok(t, vars, "fence", "allow", "jobs/*", "--unsealed")
	}
	if out := ok(t, gateway, "fence", "allowed", "--json"); strings.Join(strings.Fields(out), "") != `["jobs/*"]` {
		t.Errorf("allowed: %s", out)
	}
	if err := present(); err != nil {
		t.Error(err)
	}
	ok(t, vars, "fence", "disallow", "jobs/*")
	refused(vars, exitFailed, `pattern "jobs/*" is not allowed`, "fence", "disallow", "jobs/*")
	if err := present(); !errors.Is(err, fence.ErrNeverIssued) {
		t.Errorf("a bare token of a pattern that was taken away: %v", err)
	}
}

func TestTheSourceOfLeasesIsShownAndChanged(t *testing.T) {
	t.Parallel()
	pg := testenv.Postgres(t)
	vars := map[string]string{"FENCEGATE_POSTGRES_URL": pg.As(t, "fence_owner"), "FENCEGATE_YES": "true", "FENCEGATE_END_LEASES": "true"}
	if out := ok(t, vars, "fence", "source"); !strings.Contains(out, "nobody has taken a lease yet") {
		t.Errorf("at first: %s", out)
	}
	source, err := pglock.New(pglock.Config{Pool: testenv.PoolOf(t, pg.GatewayURL)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = source.Close() })
	lease, err := leasing.One(source.Acquire(t.Context(), leasing.UntilDone, leasing.Request{Resource: "orders/1", TTL: 5 * time.Minute}))
	if err != nil {
		t.Fatal(err)
	}
	// several sources end together
	if _, err := leasing.One(source.Acquire(t.Context(), leasing.UntilDone, leasing.Request{Resource: "orders/3", TTL: 5 * time.Minute})); err != nil {
		t.Fatal(err)
	}
	write := func() error { return use(t, pg.WriterURL, "orders/1", lease.Grant.Presented()) }
	for _, c := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{"redis"}, exitUsage, "--yes"},
		{[]string{"consul", "--yes"}, exitUsage, "consul"},
		{[]string{"--yes"}, exitUsage, "name the new one"},
		{[]string{"redis", "--yes"}, exitFailed, "leases of PostgreSQL are held (2)"},
	} {
		if code, _, stderr := cli(t, vars, append([]string{"fence", "source"}, c.args...)...); code != c.code || !strings.Contains(stderr, c.says) {
			t.Errorf("%v: %d %s; want %d, %q", c.args, code, stderr, c.code, c.says)
		}
	}
	if code, _, stderr := cli(t, map[string]string{"FENCEGATE_POSTGRES_URL": pg.GatewayURL}, "fence", "source", "redis", "--yes", "--end-leases"); code != exitForbidden || !strings.Contains(stderr, "permission denied") {
		t.Errorf("the gateway's login: %d %s", code, stderr)
	}
	if out := ok(t, vars, "fence", "source"); out != "leases come from postgres; 2 of PostgreSQL's are held\n" {
		t.Errorf("after refusals: %s", out)
	}
	if err := write(); err != nil {
		t.Errorf("the holder, after refusals: %v", err)
	}
	var s leaseSource
	if err := json.Unmarshal([]byte(ok(t, vars, "fence", "source", "redis", "--yes", "--end-leases", "--json")), &s); err != nil || s != (leaseSource{Source: "redis", Ended: 2}) {
		t.Errorf("changed: %v %+v", err, s)
	}
	if err := write(); !errors.Is(err, fence.ErrStale) {
		t.Errorf("a holder whose lease was ended: %v", err)
	}
	if _, err := leasing.One(source.Acquire(t.Context(), leasing.AtOnce, leasing.Request{Resource: "orders/2", TTL: 5 * time.Minute})); err == nil || !strings.Contains(err.Error(), "fencegate fence source postgres --yes") {
		t.Errorf("a source that is not recorded any more: %v", err)
	}
	ok(t, vars, "fence", "source", "postgres", "--yes")
	if _, err := leasing.One(source.Acquire(t.Context(), leasing.AtOnce, leasing.Request{Resource: "orders/1", TTL: 5 * time.Minute})); err != nil {
		t.Error(err)
	}
}
