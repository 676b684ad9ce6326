//go:build unix

package s3_test

import (
	"net/http"
	"testing"
	"time"

	awss3 "github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/fencegate/fencegate/gateway/objects"
	"github.com/fencegate/fencegate/internal/pgserver"
	"github.com/fencegate/fencegate/internal/testenv"
	"github.com/fencegate/fencegate/migrate"
)

// setupAlone is setup with a PostgreSQL of its own, which the test may configure. timeout bounds a statement; 0: the
// default.
func setupAlone(t *testing.T, timeout time.Duration) (w *world, server *pgserver.Server, dir string) {
	t.Helper()
	dir = testenv.ServerDir(t)
	server = testenv.OwnPostgres(t, pgserver.Config{Dir: dir, Fast: true})
	if err := migrate.Up(t.Context(), server.URL("postgres"), migrate.All); err != nil {
		t.Fatal(err)
	}
	w = setup(t, func(cfg *config) { cfg.Pool, cfg.DatabaseTimeout = poolOf(t, server.URL("postgres")), timeout })
	w.admin = poolOf(t, server.URL("postgres"))
	return w, server, dir
}

// A statement that takes too long is cancelled, and with it its COMMIT's wait for the standby: its effect is visible
// then, and a failover undoes it.
func TestNothingIsAcknowledgedThatTheSynchronousStandbyDoesNotHave(t *testing.T) {
	t.Parallel()
	w, server, _ := setupAlone(t, time.Minute)
	impatient := setup(t, func(cfg *config) {
		cfg.Pool, cfg.Store, cfg.DatabaseTimeout = poolOf(t, server.URL("postgres")), w.store, time.Second
	})
	bucket := w.bucket()
	w.keepAll()
	holder := w.lease("orders/1001", 5)
	old := put(t, holder, bucket, "1001/restored", "old")
	put(t, holder, bucket, "1001/restored", "new")
	put(t, holder, bucket, "1001/deleted", "data")
	m := begin(t, holder, bucket, "")
	m.part(1, []byte("data"))
	creds := w.issue("orders/1001", 5)
	source := "/" + bucket + "/1001/restored?versionId=" + *old.VersionId
	requests := map[string]func() raw{
		"upload": func() raw {
			return raw{creds: creds, method: "PUT", path: "/orders/1001/small", body: body("data"), size: 4, invocation: "a"}
		},
		"delete": func() raw { return raw{creds: creds, method: "DELETE", path: "/orders/1001/deleted", invocation: "b"} },
		"restore": func() raw {
			return raw{creds: creds, method: "PUT", path: "/orders/1001/restored", header: map[string]string{"X-Amz-Copy-Source": source}, invocation: "c"}
		},
	}
	testenv.SynchronousStandby(w.t, w.admin, "missing")
	answers := map[string]<-chan answer{}
	for name, r := range requests {
		answers[name] = impatient.async(r())
	}
	completed := make(chan error, 1)
	go func() {
		hasty := impatient.holder("orders/1001", 5)
		_, err := m.complete(hasty, m.parts)
		if err != nil {
			_, err = m.complete(hasty, m.parts) // as an SDK does
		}
		completed <- err
	}()
	for name, done := range answers {
		if a := <-done; a.status != http.StatusServiceUnavailable {
			t.Errorf("%s: got %+v", name, a)
		}
	}
	wantRefused(t, <-completed, 503, "ServiceUnavailable")

	testenv.SynchronousStandby(w.t, w.admin, "")
	for name, r := range requests {
		if res, text := w.send(r()); res.StatusCode != http.StatusOK && res.StatusCode != http.StatusNoContent {
			t.Errorf("%s, again: got %d %s", name, res.StatusCode, text)
		}
	}
	if _, err := m.complete(holder, m.parts); err != nil {
		t.Errorf("complete, again: %v", err)
	}
	for key, want := range map[string]string{"1001/small": "data", "1001/restored": "old", invoice: "data"} {
		if got := get(t, holder, bucket, key); got != want {
			t.Errorf("%s holds %q, want %q", key, got, want)
		}
	}
	if out, err := holder.ListObjectVersions(t.Context(), &awss3.ListObjectVersionsInput{Bucket: &bucket}); err != nil || len(out.Versions) != 6 || len(out.DeleteMarkers) != 1 {
		t.Errorf("%+v, %v", out, err)
	}
}

func (w *world) keepAll() {
	w.t.Helper()
	if err := w.srv.Catalog().SetKeep(w.t.Context(), "orders", objects.Keep{All: true}); err != nil {
		w.t.Fatal(err)
	}
}
