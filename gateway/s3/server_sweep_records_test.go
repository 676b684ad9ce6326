//go:build unix

package s3_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/fencegate/fencegate/gateway/objects"
	"github.com/fencegate/fencegate/gateway/objects/maintenance"
)

// sweeps makes everything old and sweeps, as often as it takes until a blob and its version are forgotten.
func (w *world) sweeps() {
	w.t.Helper()
	for range 5 {
		w.exec("UPDATE objects.installation SET since = '-infinity'")
		w.age("1 year")
		w.exec("UPDATE objects.retired SET since = since - interval '1 year'")
		w.exec("UPDATE objects.versions SET created_at = created_at - interval '1 year'")
		w.exec("UPDATE objects.taggings SET created_at = created_at - interval '1 year'")
		w.exec("UPDATE objects.attempts SET created_at = created_at - interval '1 year'")
		if _, err := w.srv.Keeper().Sweep(w.t.Context(), maintenance.Sweep{}); err != nil {
			w.t.Fatal(err)
		}
	}
}

// In a bucket that keeps nothing, a key that is overwritten repeatedly eventually leaves only its current version,
// under every rule.
func TestRecordsOfWritesAreBounded(t *testing.T) {
	t.Parallel()
	w := setup(t)
	bucket := w.bucket()
	holder := w.lease("orders/1001", 5)
	if _, err := w.srv.Catalog().EnsureBucket(t.Context(), "open", objects.NoRule()); err != nil {
		t.Fatal(err)
	}
	for n := range 5 {
		put(t, holder, bucket, invoice, fmt.Sprint(n))
		put(t, holder, bucket, "1001/gone", fmt.Sprint(n))
		remove1(w, "1001/gone")
		put(t, w.root(), "open", "a", fmt.Sprint(n))
		r := w.of("PUT", invoice+"?tagging", fmt.Sprintf("<Tagging><TagSet><Tag><Key>a</Key><Value>%d</Value></Tag></TagSet></Tagging>", n), nil)
		r.invocation = ""
		if res, text := w.send(r); res.StatusCode != http.StatusOK {
			t.Fatal(text)
		}
		m := begin(t, holder, bucket, "")
		m.part(1, []byte("part"))
		if _, err := m.complete(holder, m.parts); err != nil {
			t.Fatal(err)
		}
	}
	w.exec("SELECT fence.end_grants(ARRAY['orders/1001'], ARRAY[5]::bigint[], ARRAY[NULL]::bytea[])")
	w.sweeps()
	for table, most := range map[string]int{"objects.versions": 2, "objects.attempts": 0, "objects.retired": 0, "objects.taggings": 0} {
		if n := w.count("SELECT count(*) FROM " + table); n > most {
			t.Errorf("%d rows in %s, want at most %d", n, table, most)
		}
	}
	if n := w.rows(); n != 2 {
		t.Errorf("%d blobs are known, want 2", n)
	}
	if got := get(t, w.root(), bucket, invoice) + get(t, w.root(), "open", "a"); got != "part4" {
		t.Errorf("the objects hold %q", got)
	}
}

func remove1(w *world, key string) {
	w.t.Helper()
	r := w.of("DELETE", key, "", nil)
	r.invocation = ""
	if res, text := w.send(r); res.StatusCode != http.StatusNoContent {
		w.t.Fatal(text)
	}
}

// A kept version keeps its record. Other records of writes stay for a time after the bytes are deleted, to answer a
// repeated request.
func TestRecordsStayForAsLongAsTheyAreNeeded(t *testing.T) {
	t.Parallel()
	w := setup(t)
	bucket := w.keeping(objects.Keep{Versions: 2})
	w.arm("orders/1001", 5)
	first := w.of("PUT", invoice, "first", nil)
	if res, text := w.send(first); res.StatusCode != http.StatusOK {
		t.Fatal(text)
	}
	for n := range 4 {
		put(t, w.holder("orders/1001", 5), bucket, invoice, fmt.Sprint(n))
	}
	for range 4 { // the bytes are deleted, and their record stays
		w.exec("UPDATE objects.installation SET since = '-infinity'")
		w.age("1 year")
		if _, err := w.srv.Keeper().Sweep(t.Context(), maintenance.Sweep{}); err != nil {
			t.Fatal(err)
		}
	}
	if n := w.count("SELECT count(*) FROM objects.retired"); n != 2 {
		t.Errorf("the bytes of %d versions are gone, want 2", n)
	}
	w.arm("orders/1001", 6)
	again := w.of("PUT", invoice, "first", nil)
	if res, text := w.send(again); res.StatusCode != http.StatusOK {
		t.Errorf("repeated: got %d %s", res.StatusCode, text)
	}
	w.sweeps()
	again = w.of("PUT", invoice, "first", nil)
	if res, text := w.send(again); res.StatusCode != http.StatusPreconditionFailed || !strings.Contains(text, "StaleFencingToken") {
		t.Errorf("forgotten: got %d %s", res.StatusCode, text)
	}
	if n := w.count("SELECT count(*) FROM objects.versions"); n != 3 {
		t.Errorf("%d versions are recorded, want the current one and two that are kept", n)
	}
}
