//go:build unix

package s3_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencegate/fencegate/gateway/blob"
	"github.com/fencegate/fencegate/gateway/objects"
	"github.com/fencegate/fencegate/internal/testenv"
)

const commitPut = `SELECT version::text FROM objects.commit_put(gen_random_uuid(), 'orders', '1001/x', $1::text::uuid, 1, 'e', '{}', $2, $3, $4, $5, NULL, false)`

type row interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// announced announces a blob.
func (w *world) announced() string {
	w.t.Helper()
	id := blob.NewID().String()
	w.exec("SELECT objects.reserve_blobs(ARRAY['" + id + "'::uuid])")
	return id
}

func (w *world) stateOf(id string) (state string) {
	w.t.Helper()
	if err := w.admin.QueryRow(w.t.Context(), "SELECT state FROM objects.blobs WHERE id = $1::text::uuid", id).Scan(&state); err != nil {
		w.t.Fatal(err)
	}
	return state
}

func TestTheCommonCommitTakesTheCurrentGrantOnly(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.bucket()
	w.arm("orders/1001", 5)
	w.arm("orders/1002", 7)
	old := sha256.Sum256([]byte("seal of 5"))
	w.arm("orders/1001", 6)
	current := sha256.Sum256([]byte("seal of 6"))
	other := sha256.Sum256([]byte("another seal"))
	for name, c := range map[string]struct {
		resource string
		token    int
		seal     []byte
		state    string // SQLSTATE; "": accepted
	}{
		"current, authenticated by the gateway": {"orders/1001", 6, nil, ""},
		"current, with its seal":                {"orders/1001", 6, current[:], ""},
		"current, by its seal alone":            {"orders/1001", 0, current[:], ""},
		"superseded":                            {"orders/1001", 5, nil, "ZF001"},
		"superseded, with its seal":             {"orders/1001", 5, old[:], "ZF001"},
		"superseded, by its seal alone":         {"orders/1001", 0, old[:], "ZF001"},
		"with another seal":                     {"orders/1001", 6, other[:], "ZF003"},
		"never issued":                          {"orders/1001", 9, nil, "ZF003"},
		"no token, authenticated by nobody":     {"orders/1001", 0, nil, "ZF003"},
		"without a seal where one is needed":    {"orders/1001", 6, []byte{}, "ZF003"},
		"of another resource":                   {"orders/1002", 7, nil, "ZF004"},
		"of none":                               {"", 0, nil, "ZF002"},
	} {
		id := w.announced()
		var version string
		err := w.admin.QueryRow(t.Context(), commitPut, id, c.resource, c.token, c.seal, nil).Scan(&version)
		pgErr, _ := errors.AsType[*pgconn.PgError](err)
		switch {
		case c.state == "" && (err != nil || w.stateOf(id) != "live"):
			t.Errorf("%s: %v, and its blob is %s", name, err, w.stateOf(id))
		case c.state != "" && (pgErr == nil || pgErr.Code != c.state || w.stateOf(id) != "pending"):
			t.Errorf("%s: got %v, want %s; its blob is %s", name, err, c.state, w.stateOf(id))
		}
	}
	w.liveOnceIgnoringBytes()
}

// liveOnceIgnoringBytes checks that exactly one blob is live, that of the current version.
func (w *world) liveOnceIgnoringBytes() {
	w.t.Helper()
	if n := w.count(`SELECT count(*) FROM objects.blobs b LEFT JOIN objects.pointers p ON p.version = b.version WHERE b.state = 'live' AND p.version IS NULL`); n != 0 {
		w.t.Errorf("%d blobs are live that no current version lists", n)
	}
	if n := w.count("SELECT count(*) FROM objects.blobs WHERE state = 'live'"); n != 1 {
		w.t.Errorf("%d blobs are live, want 1", n)
	}
}

// Two attempts of one request meet in the INSERT: the second one returns the first one's version, and its own bytes are
// discarded.
func TestTwoAttemptsAtOnceAreOneCommit(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.bucket()
	w.arm("orders/1001", 5)
	first, second := w.announced(), w.announced()
	tx, err := w.admin.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
	attempt := func(q row, id string) (version string, err error) {
		return version, q.QueryRow(t.Context(), commitPut, id, "orders/1001", 5, nil, "the same").Scan(&version)
	}
	want, err := attempt(tx, first)
	if err != nil {
		t.Fatal(err)
	}
	type result struct {
		version string
		err     error
	}
	done := make(chan result, 1)
	go func() {
		version, err := attempt(w.admin, second)
		done <- result{version, err}
	}()
	testenv.Eventually(t, "the second attempt waits", func() bool {
		return w.count("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%commit_put%' AND datname = current_database()") == 1
	})
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := <-done; got.err != nil || got.version != want {
		t.Errorf("the second attempt: %s, %v; want %s", got.version, got.err, want)
	}
	if a, b := w.stateOf(first), w.stateOf(second); a != "live" || b != "condemned" {
		t.Errorf("the first attempt's blob is %s, the second one's %s", a, b)
	}
}

// A restored version shares its blob with its source. If it is overwritten where nothing is kept any more, the source
// still has its bytes.
func TestOverwritingARestoredVersionLeavesItsSourceAlone(t *testing.T) {
	t.Parallel()
	w := setup(t)
	bucket := w.keeping(objects.Keep{All: true})
	holder := w.lease("orders/1001", 5)
	one := put(t, holder, bucket, invoice, "one").VersionId
	put(t, holder, bucket, invoice, "two")
	if _, err := restore(t, holder, bucket, invoice, *one); err != nil {
		t.Fatal(err)
	}
	if err := w.srv.Catalog().SetKeep(t.Context(), bucket, objects.Keep{}); err != nil {
		t.Fatal(err)
	}
	put(t, holder, bucket, invoice, "three")
	if n := w.count("SELECT count(*) FROM objects.blobs b JOIN objects.versions v ON b.id = ANY (v.blobs) WHERE b.state = 'superseded' AND v.kept_order IS NOT NULL"); n != 0 {
		t.Errorf("%d blobs of kept versions are superseded", n)
	}
	if got := get(t, holder, bucket, invoice); got != "three" {
		t.Errorf("the object holds %q", got)
	}
}

func TestTheCommonCommitTakesPendingBlobsOnly(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.bucket()
	w.arm("orders/1001", 5)
	for _, state := range []string{"condemned", "superseded", "live", "forgotten"} {
		id := w.announced()
		w.exec("UPDATE objects.blobs SET state = '" + state + "' WHERE '" + state + "' <> 'forgotten' AND id = '" + id + "'")
		if state == "forgotten" {
			w.exec("DELETE FROM objects.blobs WHERE id = '" + id + "'")
		}
		var version string
		err := w.admin.QueryRow(t.Context(), commitPut, id, "orders/1001", 5, nil, nil).Scan(&version)
		if pgErr, _ := errors.AsType[*pgconn.PgError](err); pgErr == nil || pgErr.Code != "ZO004" {
			t.Errorf("%s: got %v", state, err)
		}
		if state != "forgotten" && w.stateOf(id) != state {
			t.Errorf("%s: now %s", state, w.stateOf(id))
		}
	}
	if n := w.count("SELECT count(*) FROM objects.versions") + w.count("SELECT count(*) FROM objects.pointers"); n != 0 {
		t.Errorf("%d rows of refused uploads", n)
	}
}

// Arming drains: a commit that has passed the check and is in progress ends before the next holder's acquisition does.
func TestArmingEndsACommitThatIsUnderWay(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.bucket()
	w.arm("orders/1001", 5)
	id := w.announced()
	tx, err := poolOf(t, w.pg.GatewayURL).Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
	var version string
	if err := tx.QueryRow(t.Context(), commitPut, id, "orders/1001", 5, nil, nil).Scan(&version); err != nil {
		t.Fatal(err)
	}
	w.arm("orders/1001", 6)
	if err := tx.Commit(t.Context()); err == nil || w.stateOf(id) != "pending" {
		t.Errorf("committed after the next holder had acquired: %v, the blob is %s", err, w.stateOf(id))
	}
}

func TestTheRuleStaysWhileACommitIsUnderWay(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.bucket()
	w.arm("orders/1001", 5)
	id := w.announced()
	err := pgx.BeginFunc(t.Context(), w.admin, func(tx pgx.Tx) error {
		var version string
		if err := tx.QueryRow(t.Context(), commitPut, id, "orders/1001", 5, nil, nil).Scan(&version); err != nil {
			return err
		}
		err := pgx.BeginFunc(t.Context(), w.admin, func(other pgx.Tx) error {
			_, err := other.Exec(t.Context(), "SET LOCAL lock_timeout = '100ms'")
			if err == nil {
				_, err = other.Exec(t.Context(), "SELECT objects.ensure_bucket('orders', 0)")
			}
			return err
		})
		if pgErr, _ := errors.AsType[*pgconn.PgError](err); pgErr == nil || pgErr.Code != "55P03" {
			t.Errorf("changing the rule: got %v, want that it waits", err)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}
