//go:build unix

package s3fence_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/pgfence"
	"github.com/fencegate/fencegate/fence/s3fence"
	"github.com/fencegate/fencegate/gateway/objects"
	"github.com/fencegate/fencegate/internal/testenv"
)

func TestOnlyTheGrantThatStagedPublishes(t *testing.T) {
	t.Parallel()
	w := setup(t)
	g, other := w.acquire(report, 5), w.acquire("reports/other.csv", 5)
	w.exec("INSERT INTO fence.unsealed VALUES ('reports/unsealed*')")
	staged := w.record(g, name)
	forged := fence.Grant{Resource: report, Token: 5, Seal: fence.NewSeal()}
	for _, level := range levels {
		wantErr(t, "another resource's grant", w.publish(level, other, staged), fence.ErrWrongResource)
		wantErr(t, "a forged seal", w.publish(level, forged, staged), fence.ErrNeverIssued)
		wantErr(t, "without its seal", w.publish(level, fence.Grant{Resource: report, Token: 5}, staged), fence.ErrNeverIssued)
		wantErr(t, "a guessed id", w.publish(level, g, s3fence.Staged{ID: "0197aa00-0000-7000-8000-000000000000"}), s3fence.ErrGone)
		tx := w.begin(level)
		wantErr(t, "no grant", s3fence.Publish(t.Context(), tx, staged), fence.ErrNoGrant)
		tx = w.begin(level, other)
		_, err := tx.Exec(t.Context(), "SELECT set_config('fence.resource', 'reports/*', true)")
		if err == nil {
			err = s3fence.Publish(t.Context(), tx, staged)
		}
		wantErr(t, "a pattern", err, fence.ErrNeverIssued)
		for _, id := range []string{"x", "'; DROP TABLE rows; --", staged.ID + "'"} {
			wantState(t, id, w.publish(level, g, s3fence.Staged{ID: id}), "22P02")
		}
		tx = w.begin(level, g)
		_, err = tx.Exec(t.Context(), "SELECT fence.publish(NULL)")
		wantState(t, "NULL", err, "ZO010")
		tx = w.begin(level, g)
		_, err = tx.Exec(t.Context(), "SELECT fence.publish_all(NULL)")
		wantState(t, "NULL", err, "ZO010")
	}
	w.holds("all refused", "", 0)
	// The grant decides, not the login. This writer presents its seal without the token.
	if err := publishOn(t.Context(), testenv.PoolOf(t, w.pg.URL), pgx.ReadCommitted, g, staged); err != nil {
		t.Error(err)
	}
	if err := w.publish(pgx.ReadCommitted, fence.Grant{Resource: report, Seal: g.Seal}, w.record(g, name)); err != nil {
		t.Error(err)
	}
}

func TestAWriterGetsAtNothingBehindPublish(t *testing.T) {
	t.Parallel()
	w := setup(t)
	g := w.acquire(report, 1)
	staged := w.record(g, name)
	const (
		unpublish           = "SELECT fence.unpublish('reports', $1::text)"
		publish, all, asked = "SELECT fence.publish($1::text::uuid)", "SELECT fence.publish_all(ARRAY[$1::text::uuid])", "SELECT fence.staged($1::text::uuid)"
		look                = "SELECT id FROM objects.stages WHERE id = $1::text::uuid"
		stage               = "SELECT objects.stage_upload(gen_random_uuid(), 'reports', 'x', ARRAY[$1::text::uuid], '{9}', 'forged', '{}', 'reports/x', 1, NULL, NULL, false, NULL)"
		multipart           = "SELECT objects.stage_multipart(gen_random_uuid(), 'reports', 'x', ARRAY[$1::text::uuid], '{9}', 'forged', '{}', 'reports/x', 1, NULL, NULL, false)"
		denied              = "42501"
	)
	for _, as := range []struct {
		login, url string
		may        map[string]string // how far it gets
	}{
		{"fence_writer", w.pg.WriterURL, map[string]string{publish: "ZF002", all: "ZF002", unpublish: "ZF002", asked: ""}},
		{"fence_gateway", w.pg.GatewayURL, map[string]string{look: "", stage: "ZF003", multipart: "ZO008"}},
		{"nobody", w.pg.OtherURL, nil},
	} {
		pool := testenv.PoolOf(t, as.url)
		for _, sql := range []string{
			publish, all, unpublish, asked, look, stage, multipart,
			"SELECT objects.publish(ARRAY[$1::text::uuid], NULL, false)",
			"SELECT objects.publish_one(ROW($1::text::uuid, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL)::objects.stages)",
			"SELECT objects.authorize_stage(ROW($1::text::uuid, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL)::objects.stages)",
			"UPDATE objects.stages SET etag = 'forged', blob_sizes = '{9}' WHERE id = $1::text::uuid",
			"INSERT INTO objects.stages SELECT * FROM objects.stages WHERE id = $1::text::uuid",
			"SELECT objects.verify_presented($1::text, 'lease')", "SELECT objects.lock_current('reports', $1::text)",
			"DELETE FROM objects.stages WHERE id = $1::text::uuid",
			"INSERT INTO objects.pointers SELECT 'reports', 'x', $1::text::uuid, 1, 'e', now()",
		} {
			want, may := as.may[sql]
			if !may {
				want = denied
			}
			_, err := pool.Exec(t.Context(), sql, staged.ID)
			if want == "" && err != nil {
				t.Errorf("%s: %s: %v", as.login, sql, err)
			} else if want != "" {
				wantState(t, as.login+": "+sql, err, want)
			}
		}
	}
}

// A login's own functions, operators and temporary tables come first in its search_path. The fence's functions do not
// use them.
func TestNamesOfAWritersOwnAreNotCalled(t *testing.T) {
	t.Parallel()
	w := setup(t)
	g := w.acquire(report, 1)
	config, err := pgx.ParseConfig(w.pg.As(t, "fence_writer"))
	if err != nil {
		t.Fatal(err)
	}
	w.exec("CREATE SCHEMA own AUTHORIZATION " + pgx.Identifier{config.User}.Sanitize() + "; GRANT USAGE ON SCHEMA own TO PUBLIC")
	conn, err := pgx.ConnectConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(t.Context()) }()
	for _, sql := range []string{
		"SET search_path = own, pg_temp, pg_catalog",
		"CREATE TABLE own.loot (who text); GRANT ALL ON own.loot TO PUBLIC",
		"CREATE FUNCTION own.spy() RETURNS void LANGUAGE sql AS $$ INSERT INTO own.loot VALUES (current_user) $$",
		"CREATE FUNCTION own.same(a uuid, b uuid) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN PERFORM own.spy(); RETURN true; END $$",
		"CREATE OPERATOR own.= (LEFTARG = uuid, RIGHTARG = uuid, FUNCTION = own.same)",
		"CREATE FUNCTION own.current_setting(text) RETURNS text LANGUAGE plpgsql AS $$ BEGIN PERFORM own.spy(); RETURN 'x'; END $$",
		"CREATE FUNCTION own.unnest(uuid[]) RETURNS SETOF uuid LANGUAGE plpgsql AS $$ BEGIN PERFORM own.spy(); END $$",
		"CREATE FUNCTION own.now() RETURNS timestamptz LANGUAGE plpgsql AS $$ BEGIN PERFORM own.spy(); RETURN NULL; END $$",
		"CREATE TEMP TABLE stages (id uuid); CREATE TEMP TABLE blobs (id uuid); CREATE TEMP TABLE unnest (x int)",
	} {
		if _, err := conn.Exec(t.Context(), sql); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
	for _, level := range levels {
		staged := w.record(g, name)
		if err := pgfence.InTxWith(t.Context(), conn, pgx.TxOptions{IsoLevel: level}, g, func(tx pgx.Tx) error {
			return s3fence.Publish(t.Context(), tx, staged)
		}); err != nil {
			t.Error(err)
		}
		var state string
		if err := conn.QueryRow(t.Context(), "SELECT fence.staged($1::text::uuid)", staged.ID).Scan(&state); err != nil || state != "published" {
			t.Errorf("%s, %v", state, err)
		}
	}
	if n := w.count("SELECT count(*) FROM own.loot WHERE who <> $1", config.User); n != 0 {
		t.Errorf("the login's functions ran %d times with other rights", n)
	}
	for _, f := range []string{"fence.publish", "fence.publish_all", "fence.unpublish", "fence.staged", "objects.publish", "objects.verify_presented", "objects.lock_current", "objects.publish_one", "objects.authorize_stage", "objects.stage_upload", "objects.stage_multipart"} {
		schema, name, _ := strings.Cut(f, ".")
		if n := w.count(fmt.Sprintf(`SELECT coalesce(bool_and(prosecdef AND proconfig = ARRAY['search_path=pg_catalog, pg_temp'] AND proowner = 'fence_owner'::regrole), false)::int
			FROM pg_proc WHERE pronamespace = '%s'::regnamespace AND proname = '%s'`, schema, name)); n != 1 { // each signature
			t.Errorf("%s has no pinned search_path, or other rights", f)
		}
	}
}

func TestTheRuleOfThePublicationCounts(t *testing.T) {
	t.Parallel()
	w := setup(t)
	g := w.acquire(report, 1)
	whole := w.acquire(bucket, 1)
	for _, level := range levels {
		staged := w.record(g, name)
		w.rule(objects.BucketRule())
		wantErr(t, "another resource now", w.publish(level, g, staged), fence.ErrWrongResource)
		wantErr(t, "under which it was not staged", w.publish(level, whole, staged), fence.ErrWrongResource)
		w.rule(objects.NoRule())
		tx := w.begin(level)
		wantErr(t, "none now, and still its own", s3fence.Publish(t.Context(), tx, staged), fence.ErrNoGrant)
		free := w.record(fence.Grant{}, "free.csv")
		tx = w.begin(level)
		if err := s3fence.Publish(t.Context(), tx, free); err != nil {
			t.Errorf("under the rule none: %v", err)
		}
		_ = tx.Rollback(t.Context())
		w.rule(objects.KeyRule())
		wantErr(t, "staged when there was no rule", w.publish(level, g, free), fence.ErrWrongResource)
		w.rule(objects.KeyRule().Monotone())
		wantErr(t, "monotone takes no seal", w.publish(level, g, staged), fence.ErrNeverIssued)
		w.rule(objects.KeyRule())

		begun := w.begin(level, g)
		if err := w.srv.Catalog().SetPrefixRule(t.Context(), bucket, "2026", objects.BucketRule()); err != nil {
			t.Fatal(err)
		}
		err := s3fence.Publish(t.Context(), begun, staged)
		if level == pgx.ReadCommitted {
			wantErr(t, "a prefix's rule", err, fence.ErrWrongResource)
		} else {
			wantState(t, "a rule that the snapshot does not show", err, "40001")
		}
		_ = begun.Rollback(t.Context())
		if err := w.srv.Catalog().DropPrefixRule(t.Context(), bucket, "2026"); err != nil {
			t.Fatal(err)
		}
		if err := w.publish(level, g, staged); err != nil {
			t.Errorf("under the rule that it was staged with: %v", err)
		}
		w.exec("DELETE FROM objects.pointers")
	}
	staged := w.record(g, name)
	w.exec("SELECT objects.delete_bucket($1)", bucket)
	wantErr(t, "the bucket is gone", w.publish(pgx.ReadCommitted, g, staged), s3fence.ErrNoBucket)
}

func TestTokensMintedElsewherePublishWhereTheyAreAccepted(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.rule(objects.KeyRule().Monotone())
	minted := fence.Grant{Resource: report, Token: 41}
	root := w.open(s3fence.Config{AccessKeyID: rootAccess, SecretAccessKey: rootSecret, Grant: minted})
	stage := func() s3fence.Staged {
		s, err := root.Stage(t.Context(), bucket, name, body("abc"), 3)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	staged := stage()
	wantErr(t, "PostgreSQL takes no bare number", w.publish(pgx.ReadCommitted, minted, staged), fence.ErrNeverIssued)
	w.exec("INSERT INTO fence.unsealed VALUES ('reports/*')")
	for _, level := range levels {
		if err := w.publish(level, minted, stage()); err != nil {
			t.Error(err)
		}
		minted42 := fence.Grant{Resource: report, Token: 42}
		tx := w.begin(level)
		if err := pgfence.Use(t.Context(), tx, minted42); err != nil { // raises the fence
			t.Fatal(err)
		}
		wantErr(t, "staged under a lower one", s3fence.Publish(t.Context(), tx, staged), fence.ErrStale)
		_ = tx.Rollback(t.Context())
	}
}
