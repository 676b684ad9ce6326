//go:build unix

package s3fence_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/pgfence"
	"github.com/fencegate/fencegate/fence/s3fence"
	"github.com/fencegate/fencegate/gateway/objects"
	"github.com/fencegate/fencegate/gateway/objects/maintenance"
)

func TestRowsAndFileBecomeVisibleTogetherOrNotAtAll(t *testing.T) {
	t.Parallel()
	w := setup(t)
	g := w.acquire(report, 1)
	seen, rows := "", 0
	for _, level := range levels {
		text := "written at " + string(level)
		first := w.stage(g, name, "rolled back")
		second := w.stage(g, name, text, s3fence.ContentType("text/csv"))
		w.holds("staged", seen, rows)
		refused := errors.New("changed its mind")
		err := pgfence.InTxWith(t.Context(), w.writer, pgx.TxOptions{IsoLevel: level}, g, func(tx pgx.Tx) error {
			if _, err := tx.Exec(t.Context(), "INSERT INTO rows VALUES ('x')"); err != nil {
				return err
			}
			err := s3fence.Publish(t.Context(), tx, first)
			w.holds("before the rollback", seen, rows)
			return errors.Join(err, refused)
		})
		wantErr(t, "rolled back", err, refused)
		w.holds("after the rollback", seen, rows)
		err = pgfence.InTxWith(t.Context(), w.writer, pgx.TxOptions{IsoLevel: level}, g, func(tx pgx.Tx) error {
			if _, err := tx.Exec(t.Context(), "INSERT INTO rows VALUES ('x')"); err != nil {
				return err
			}
			err := s3fence.Publish(t.Context(), tx, second)
			w.holds("before COMMIT", seen, rows)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		seen, rows = text, rows+1
		w.holds("after COMMIT", seen, rows)
	}
	w.consistent()
}

// consistent checks that a blob is live exactly while the current version refers to it.
func (w *world) consistent() {
	w.t.Helper()
	const current = `SELECT unnest(v.blobs) AS id FROM objects.pointers p JOIN objects.versions v ON v.id = p.version`
	if n := w.count("SELECT count(*) FROM objects.blobs WHERE state = 'live' AND id NOT IN (" + current + ")"); n != 0 {
		w.t.Errorf("%d live blobs are no current version's", n)
	}
	if n := w.count("SELECT count(*) FROM (" + current + ") c LEFT JOIN objects.blobs b USING (id) WHERE b.state IS DISTINCT FROM 'live'"); n != 0 {
		w.t.Errorf("%d blobs of current versions are not live", n)
	}
}

func TestAStaleGrantPublishesNothing(t *testing.T) {
	t.Parallel()
	w := setup(t)
	token := fence.Token(0)
	rows := 0
	seen := ""
	for _, level := range levels {
		token += 2
		old := w.acquire(report, token)
		staged := w.stage(old, name, "stale")
		begun := w.begin(level) // its snapshot is older than the newer grant
		current := w.acquire(report, token+1)
		wantErr(t, "a newer grant was armed", w.publish(level, old, staged), fence.ErrStale)

		if _, err := begun.Exec(t.Context(), "SELECT set_config('fence.resource', $1, true), set_config('fence.token', $2, true)", report, old.Presented()); err != nil {
			t.Fatal(err)
		}
		wantErr(t, "on an old snapshot", s3fence.Publish(t.Context(), begun, staged), fence.ErrStale)

		err := w.publish(level, current, staged)
		wantErr(t, "staged under an older grant", err, fence.ErrStale)
		if stale, ok := errors.AsType[*fence.StaleError](err); !ok || stale.Presented != token || stale.Recorded != token+1 || stale.Resource != report {
			t.Errorf("the facts are %+v", stale)
		}
		w.holds("refused", seen, rows)
		seen, rows = "current at "+string(level), rows+1
		if err := w.publish(level, current, w.stage(current, name, seen)); err != nil {
			t.Fatal(err)
		}
		w.holds("the newer one published", seen, rows)
	}
}

// If a publication has passed the check, a later acquisition waits for it, or ends its session.
func TestAcquiringDrainsAPublicationUnderWay(t *testing.T) {
	t.Parallel()
	w := setup(t)
	for i, level := range levels {
		g := w.acquire(report, fence.Token(2*i+1))
		staged := w.record(g, name)
		tx := w.begin(level, g)
		if err := s3fence.Publish(t.Context(), tx, staged); err != nil {
			t.Fatal(err)
		}
		w.acquire(report, fence.Token(2*i+2))
		if err := tx.Commit(t.Context()); err == nil {
			t.Errorf("%s: a superseded publication was committed", level)
		}
	}
	if n := w.count("SELECT count(*) FROM objects.pointers"); n != 0 {
		t.Errorf("%d objects were published", n)
	}
}

func TestAStageIsPublishedOnce(t *testing.T) {
	t.Parallel()
	w := setup(t)
	g := w.acquire(report, 1)
	for _, level := range levels {
		staged := w.record(g, name)
		tx := w.begin(level, g)
		if err := s3fence.Publish(t.Context(), tx, staged); err != nil {
			t.Fatal(err)
		}
		wantErr(t, "again in its transaction", s3fence.Publish(t.Context(), tx, staged), s3fence.ErrPublished)
		_ = tx.Rollback(t.Context())
		if err := w.publish(level, g, staged); err != nil {
			t.Fatalf("after the rollback: %v", err)
		}
		wantErr(t, "again", w.publish(level, g, staged), s3fence.ErrPublished)

		// Concurrently, only one succeeds.
		staged = w.record(g, name)
		errs := make([]error, 8)
		var all sync.WaitGroup
		for i := range errs {
			all.Go(func() { errs[i] = w.retried(level, g, staged) })
		}
		all.Wait()
		won := 0
		for _, err := range errs {
			if err == nil {
				won++
			} else {
				wantErr(t, "the others", err, s3fence.ErrPublished)
			}
		}
		if n := w.count("SELECT count(*) FROM rows WHERE note = $1", staged.ID); won != 1 || n != 1 {
			t.Errorf("%s: %d published, %d rows", level, won, n)
		}
	}
	w.consistent()
}

// retried repeats a transaction after errors that PostgreSQL declares retryable.
func (w *world) retried(level pgx.TxIsoLevel, g fence.Grant, staged ...s3fence.Staged) error {
	for {
		err := w.publish(level, g, staged...)
		if pg, ok := errors.AsType[*pgconn.PgError](err); !ok || pg.Code != "40001" && pg.Code != "40P01" {
			return err
		}
	}
}

func TestASavepointTakesAPublicationBack(t *testing.T) {
	t.Parallel()
	w := setup(t)
	g := w.acquire(report, 1)
	for _, level := range levels {
		staged, other := w.record(g, name), w.record(g, name)
		err := pgfence.InTxWith(t.Context(), w.writer, pgx.TxOptions{IsoLevel: level}, g, func(tx pgx.Tx) error {
			inner, err := tx.Begin(t.Context())
			if err == nil {
				err = s3fence.Publish(t.Context(), inner, staged)
			}
			if err := errors.Join(err, inner.Rollback(t.Context())); err != nil {
				return err
			}
			return s3fence.Publish(t.Context(), tx, other)
		})
		if err != nil {
			t.Fatal(err)
		}
		wantErr(t, "taken back", s3fence.Outcome(t.Context(), w.writer, staged), fence.ErrNotCommitted)
		if err := s3fence.Outcome(t.Context(), w.writer, other); err != nil {
			t.Error(err)
		}
		if err := w.publish(level, g, staged); err != nil {
			t.Error(err)
		}
	}
	w.consistent()
}

func TestSeveralArePublishedTogetherInOneOrderOfLocks(t *testing.T) {
	t.Parallel()
	w := setup(t)
	a, b := w.acquire("reports/a", 1), w.acquire("reports/b", 1)
	both := func(s ...s3fence.Staged) error {
		return pgfence.InTxAll(t.Context(), w.writer, pgfence.TxOptions{}, []fence.Grant{b, a}, func(tx pgx.Tx) error {
			return s3fence.Publish(t.Context(), tx, s...)
		})
	}
	w.exec("SELECT objects.commit_deletion(gen_random_uuid(), 'reports', 'a', 'reports/a', 1, NULL, NULL, NULL)")
	var all sync.WaitGroup
	for i := range 4 {
		var pairs [][]s3fence.Staged
		for range 20 {
			pair := []s3fence.Staged{w.record(a, "a"), w.record(b, "b")}
			if i%2 == 1 {
				pair[0], pair[1] = pair[1], pair[0]
			}
			pairs = append(pairs, pair)
		}
		all.Go(func() {
			for _, pair := range pairs {
				if err := both(pair...); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	first, second := w.record(a, "a"), w.record(b, "b")
	err := w.publish(pgx.ReadCommitted, a, first, second) // all or none
	wantErr(t, "one grant of two", err, fence.ErrWrongResource)
	wantErr(t, "the other one", s3fence.Outcome(t.Context(), w.writer, first), fence.ErrNotCommitted)
	one, two := w.record(a, "a"), w.record(a, "a")
	if err := both(two, one); err != nil {
		t.Fatal(err)
	}
	if n := w.count("SELECT count(*) FROM objects.pointers WHERE version = $1::text::uuid", one.ID); n != 1 {
		t.Error("of two of one key the later one in the list is not current")
	}
	w.consistent()
}

func TestConditionsAreJudgedWhenTheUploadIsPublished(t *testing.T) {
	t.Parallel()
	w := setup(t)
	g := w.acquire(report, 1)
	for i, level := range levels {
		fresh := w.stage(g, name, "new", s3fence.IfNoneMatch()) // without regard to the current object
		w.exec("DELETE FROM objects.pointers")
		errs := make([]error, 8)
		var all sync.WaitGroup
		staged := []s3fence.Staged{fresh}
		for range len(errs) - 1 {
			staged = append(staged, w.stage(g, name, "new", s3fence.IfNoneMatch()))
		}
		for i := range errs {
			all.Go(func() { errs[i] = w.retried(level, g, staged[i]) })
		}
		all.Wait()
		won := 0
		for _, err := range errs {
			if err == nil {
				won++
			} else {
				wantErr(t, "the others", err, s3fence.ErrPrecondition)
			}
		}
		if n := w.count("SELECT count(*) FROM rows"); won != 1 || n != 2*i+1 {
			t.Errorf("%s: %d created it, %d rows", level, won, n)
		}
		wantErr(t, "another ETag", w.publish(level, g, w.stage(g, name, "x", s3fence.IfMatch("abc"))), s3fence.ErrPrecondition)
		if err := w.publish(level, g, w.stage(g, name, "y", s3fence.IfMatch(fresh.ETag))); err != nil {
			t.Error(err)
		}
		w.exec("DELETE FROM objects.pointers")
		wantErr(t, "nothing there", w.publish(level, g, w.stage(g, name, "x", s3fence.IfMatch("*"))), s3fence.ErrPrecondition)
	}
}

func TestAPublishedVersionIsRecordedWithItsTokenAndHolder(t *testing.T) {
	t.Parallel()
	w := setup(t)
	if err := w.srv.Catalog().SetKeep(t.Context(), bucket, objects.Keep{All: true}); err != nil {
		t.Fatal(err)
	}
	first := w.acquire(report, 7)
	one := w.stage(first, name, "one", s3fence.Metadata("origin", "test"))
	if err := w.publish(pgx.ReadCommitted, first, one); err != nil {
		t.Fatal(err)
	}
	second := w.acquire(report, 8)
	two := w.stage(second, name, "two!")
	if err := w.publish(pgx.Serializable, second, two); err != nil {
		t.Fatal(err)
	}
	found, err := objects.NewCatalog(objects.NewDatabase(testPool(w), 0)).Audit(t.Context(), bucket, name, 10)
	if err != nil || len(found) != 2 {
		t.Fatalf("%d records, %v", len(found), err)
	}
	for i, want := range []s3fence.Staged{two, one} {
		got := found[i]
		if got.ID != want.ID || got.ETag != want.ETag || got.Size != want.Size || got.Token != fence.Token(8-i) || got.Holder != "worker" || got.Resource != report ||
			got.Latest != (i == 0) || got.Kept != (i == 1) {
			t.Errorf("got %+v, want %+v", got, want)
		}
	}
	if n := w.count("SELECT count(*) FROM objects.versions WHERE attributes -> 'metadata' ->> 'origin' = 'test'"); n != 1 {
		t.Error("the metadata is not recorded")
	}
}

// A REPEATABLE READ publication fails if a version that refers to the old bytes was removed after its snapshot.
// Otherwise these bytes would never be deleted.
func TestAnOldSnapshotKeepsNoBytesForEver(t *testing.T) {
	t.Parallel()
	w := setup(t)
	g := w.acquire(report, 1)
	if err := w.srv.Catalog().SetKeep(t.Context(), bucket, objects.Keep{All: true}); err != nil {
		t.Fatal(err)
	}
	if err := w.publish(pgx.ReadCommitted, g, w.record(g, name)); err != nil {
		t.Fatal(err)
	}
	w.exec("SELECT objects.restore_version(gen_random_uuid(), 'reports', $1, (SELECT version FROM objects.pointers), $2, 1, NULL, NULL, NULL, false)", name, report)
	if err := w.srv.Catalog().SetKeep(t.Context(), bucket, objects.Keep{}); err != nil {
		t.Fatal(err)
	}
	next := w.record(g, name)
	for _, level := range levels[1:] {
		tx := w.begin(level, g)
		if level == pgx.RepeatableRead {
			if got, err := w.srv.Keeper().Sweep(t.Context(), maintenance.Sweep{}); err != nil || got.Pruned != 1 {
				t.Fatalf("swept %+v, %v", got, err)
			}
		}
		err := s3fence.Publish(t.Context(), tx, next)
		if level == pgx.RepeatableRead {
			wantState(t, "on the old snapshot", err, "40001")
			_ = tx.Rollback(t.Context())
		} else if err := errors.Join(err, tx.Commit(t.Context())); err != nil {
			t.Fatal(err)
		}
	}
	w.consistent()
	if n := w.count("SELECT count(*) FROM objects.blobs WHERE state = 'superseded'"); n != 1 {
		t.Errorf("%d blobs are superseded, want 1", n)
	}
}

func TestAPublicationIsDurableWhateverTheSessionChose(t *testing.T) {
	t.Parallel()
	w := setup(t)
	g := w.acquire(report, 1)
	tx := w.begin(pgx.ReadCommitted, g)
	var got string
	_, err := tx.Exec(t.Context(), "SET LOCAL synchronous_commit = off")
	if err == nil {
		err = s3fence.Publish(t.Context(), tx, w.record(g, name))
	}
	if err == nil {
		err = tx.QueryRow(t.Context(), "SHOW synchronous_commit").Scan(&got)
	}
	if err != nil || got != "on" {
		t.Errorf("the commit is %q, %v", got, err)
	}
}

func TestPublishingNeedsATransaction(t *testing.T) {
	t.Parallel()
	wantErr(t, "pgx", s3fence.Publish(context.Background(), nil, s3fence.Staged{}), fence.ErrInvalid)
	wantErr(t, "database/sql", s3fence.PublishSQL(context.Background(), nil, s3fence.Staged{}), fence.ErrInvalid)
}

func TestConditionsMayComeWithTheCall(t *testing.T) {
	t.Parallel()
	w := setup(t)
	g := w.acquire(report, 1)
	call := func(staged s3fence.Staged, args string) (key string, err error) {
		err = pgfence.InTx(t.Context(), w.writer, g, func(tx pgx.Tx) error {
			return tx.QueryRow(t.Context(), fmt.Sprintf("SELECT bucket || '/' || key || ' ' || etag || ' ' || size FROM fence.publish($1::text::uuid%s)", args), staged.ID).Scan(&key)
		})
		return key, err
	}
	first, second := w.record(g, name), w.stage(g, name, "abc")
	if got, err := call(first, ", if_none_match => true"); got != "reports/2026-11.csv e 1" || err != nil {
		t.Errorf("got %q, %v", got, err)
	}
	_, err := call(second, ", if_none_match => true")
	wantState(t, "there is one", err, "ZO002")
	_, err = call(second, ", if_match => 'f'")
	wantState(t, "another one", err, "ZO002")
	_, err = call(second, ", if_match => '!f'")
	wantState(t, "what is no ETag", err, "22023")
	conditional := w.stage(g, name, "abc", s3fence.IfMatch("e"))
	_, err = call(conditional, ", if_match => 'f'")
	wantState(t, "two conditions", err, "ZO002")
	if got, err := call(second, ", if_match => 'e'"); got != "reports/2026-11.csv 900150983cd24fb0d6963f7d28e17f72 3" || err != nil {
		t.Errorf("got %q, %v", got, err)
	}
	_, err = call(conditional, ", if_none_match => NULL")
	wantState(t, "it has changed", err, "ZO002")
}
