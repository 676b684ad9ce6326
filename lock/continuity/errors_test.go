//go:build unix

package continuity

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencegate/fencegate/fence/pgfence"
	"github.com/fencegate/fencegate/internal/testenv"
	"github.com/fencegate/fencegate/lock"
	"github.com/fencegate/fencegate/lock/admin"
)

// Only an operator can tell a copy from a replacement, and the wrong command ends leases.
func TestADoubtNamesBothCasesAndBothCommands(t *testing.T) {
	t.Parallel()
	was := State{Identity: "s/1/o", Written: 0x100000007, Beats: 7, Database: 5}
	for name, c := range map[string]struct {
		is   State
		what string
	}{
		"another server": {State{Identity: "s/2/o", Written: 7, Beats: 7, Database: 5}, "it is s/2/o now and was s/1/o"},
		"the same one":   {State{Identity: "s/1/o", Written: 7, Beats: 7, Database: 6}, "it is the database 6 now and was 5"},
		"set back":       {State{Identity: "s/1/o", Written: 6, Beats: 7, Database: 5}, "it stands at 0/6 (beat 7) and was at 1/7 (beat 7)"},
	} {
		text := (&ForgottenError{Was: was, Is: c.is}).Error()
		for _, part := range []string{c.what, "in a copy beside the first database", "fencegate fence new-group --yes;", "(a promotion, a restore), run: fencegate fence invalidate-all --yes"} {
			if !strings.Contains(text, part) {
				t.Errorf("%s: %q lacks %q", name, text, part)
			}
		}
		if alone := (&ForgottenError{Was: was, Is: c.is, alone: true}).Error(); strings.Contains(alone, "new-group") {
			t.Errorf("%s, without nodes: %s", name, alone)
		}
	}
}

// copied makes a copy of the group's database in the same cluster; the oids of its tables are the same.
func (g *group) copied(t *testing.T) *pgxpool.Config {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), g.URL("template1"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(t.Context())) }()
	if _, err := conn.Exec(t.Context(), `CREATE DATABASE copied TEMPLATE postgres`); err != nil {
		t.Fatal(err)
	}
	config := g.pool.Copy()
	config.ConnConfig.Database = "copied"
	return config
}

// prefix returns the key prefix of a database.
func prefix(t *testing.T, config *pgxpool.Config) string {
	t.Helper()
	conn, err := pgx.ConnectConfig(t.Context(), config.ConnConfig)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(t.Context())) }()
	own, err := pgfence.KeyPrefix(conn)(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return own
}

func TestACopyBesideTheFirstDatabaseTakesNothingFromIt(t *testing.T) {
	t.Parallel()
	g := startGroup(t)
	copied := g.copied(t)
	own := prefix(t, g.pool)
	if prefix(t, copied) != own || !strings.HasPrefix(own, "fencegate:") {
		t.Fatalf("the copy has the prefix %s, the first one %s", prefix(t, copied), own)
	}
	first := g.open(t, g.pool, lock.Config{KeyPrefix: lock.Prefix(own)})
	first.initialise(t)
	lease, held := first.acquire(t, "orders/7")
	if err := first.Check(t.Context()); err != nil {
		t.Fatal(err)
	}
	goesOn := func(when string) {
		t.Helper()
		if err := errors.Join(first.Check(t.Context()), lease.Extend(t.Context(), lock.DefaultMaxTTL)); err != nil {
			t.Errorf("%s the first one's: %v", when, err)
		}
		mine, _ := first.acquire(t, "orders/2")
		release(t, mine)
	}

	second := g.open(t, copied, lock.Config{KeyPrefix: lock.Prefix(own)})
	second.wantForgotten(t, "run: fencegate fence invalidate-all --yes")
	_, err := second.try(t, "orders/3")
	if err == nil || !strings.Contains(err.Error(), "it is the database ") || !strings.Contains(err.Error(), "fencegate fence new-group --yes") {
		t.Errorf("in the copy: %v", err)
	}
	goesOn("beside a copy,")

	conn, err := pgx.Connect(t.Context(), g.URL("copied"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(t.Context())) }()
	if _, err := conn.Exec(t.Context(), `SELECT fence.new_group()`); err != nil {
		t.Fatal(err)
	}
	apart := prefix(t, copied)
	if apart == own || prefix(t, g.pool) != own {
		t.Errorf("the copy has the prefix %s now, the first one %s, and was %s", apart, prefix(t, g.pool), own)
	}
	if _, err := second.try(t, "orders/3"); !errors.As(err, new(*OtherDatabaseError)) {
		t.Errorf("under the first one's keys: %v; want an OtherDatabaseError", err)
	}
	const ttl = 5 * time.Second
	third := g.open(t, copied, lock.Config{KeyPrefix: lock.Prefix(apart), MaxTTL: ttl})
	testenv.Eventually(t, "the new group's quarantine is over", func() bool {
		return !slices.ContainsFunc(admin.Of(third.locker).Status(t.Context()), func(st admin.NodeStatus) bool { return !st.Admitted })
	})
	other, err := third.locker.TryAcquire(t.Context(), "orders/7", lock.WithTTL(ttl))
	if err != nil {
		t.Fatal(err)
	}
	if next := other.Ref().Token; next <= held.Token {
		t.Errorf("the copy's token is %d after the first one's %d", next, held.Token)
	}
	goesOn("beside a group of its own,")
	release(t, lease)
}
