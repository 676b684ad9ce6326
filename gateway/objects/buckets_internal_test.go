//go:build unix

package objects

import (
	"testing"
	"time"

	"github.com/fencegate/fencegate/internal/testenv"
)

// An attempt that PostgreSQL refused did not create the bucket that the next attempt finds. One without an answer may
// have created it.
func TestABucketIsCreatedByAnAttemptWhoseAnswerWasLost(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		first string // what the first attempt does
		want  bool
	}{
		"refused":     {`RAISE EXCEPTION 'again' USING ERRCODE = '40001'`, false},
		"session end": {`PERFORM pg_terminate_backend(pg_backend_pid())`, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pg := testenv.Postgres(t)
			admin := pg.Pool(t)
			for _, sql := range []string{
				`SELECT objects.create_bucket('b', 0, 'lease')`,
				`ALTER FUNCTION objects.create_bucket RENAME TO create_bucket_now`,
				`CREATE SEQUENCE public.attempts`,
				`CREATE FUNCTION objects.create_bucket(p_bucket text, p_depth integer, p_mode text,
					OUT created boolean, OUT current_depth integer, OUT current_mode text) LANGUAGE plpgsql SECURITY DEFINER AS $$
				BEGIN
					IF nextval('public.attempts') = 1 THEN ` + c.first + `; END IF;
					SELECT * INTO created, current_depth, current_mode FROM objects.create_bucket_now(p_bucket, p_depth, p_mode);
				END $$`,
			} {
				if _, err := admin.Exec(t.Context(), sql); err != nil {
					t.Fatal(err)
				}
			}
			catalog := NewCatalog(NewDatabase(testenv.PoolOf(t, pg.GatewayURL), time.Minute))
			created, current, err := catalog.CreateBucket(t.Context(), "b", BucketRule())
			if err != nil || created != c.want || current != BucketRule() {
				t.Errorf("created %v with %+v, %v", created, current, err)
			}
			var attempts int
			if err := admin.QueryRow(t.Context(), `SELECT last_value FROM public.attempts`).Scan(&attempts); err != nil || attempts != 2 {
				t.Errorf("%d attempts, %v", attempts, err)
			}
		})
	}
}
