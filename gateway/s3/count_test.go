//go:build unix

package s3_test

import (
	"slices"
	"testing"

	"github.com/fencegate/fencegate/gateway/blob"
	"github.com/fencegate/fencegate/internal/testenv"
)

// The tests count what uploads have made and left. The server also keeps a reserve of blobs, which only it can list.

// announcing makes each upload announce a blob of its own, as on a store that makes no places, or if nothing can be
// reserved.
func announcing(cfg *config) { cfg.Reserve = -1 }

// byDefault makes small uploads take reserved blobs.
func byDefault(*config) {}

// bothWays runs a test of small uploads with reserved blobs, and with blobs that they announce themselves.
func bothWays(t *testing.T, test func(t *testing.T, way option)) {
	t.Helper()
	for name, way := range map[string]option{"reserved": byDefault, "announced": announcing} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, way)
		})
	}
}

// count runs a query for one number.
func (w *world) count(sql string, args ...any) int {
	w.t.Helper()
	var n int
	if err := w.admin.QueryRow(w.t.Context(), sql, args...).Scan(&n); err != nil {
		w.t.Fatal(err)
	}
	return n
}

// reserve returns the server's reserved blobs, at a moment when it announces none.
func (w *world) reserve() (ids []string) {
	w.t.Helper()
	var all []blob.ID
	testenv.Eventually(w.t, "no batch is on its way", func() (settled bool) {
		all, settled = w.srv.Reserved()
		return settled
	})
	ids = []string{}
	for _, id := range all {
		ids = append(ids, id.String())
	}
	return ids
}

// beside counts what is not in the reserve, which does not change meanwhile.
func (w *world) beside(count func(reserve []string) int) int {
	w.t.Helper()
	for {
		reserve := w.reserve()
		if n := count(reserve); slices.Equal(reserve, w.reserve()) {
			return n
		}
	}
}

// blobs counts the blobs in the store, without the reserve's places.
func (w *world) blobs() int {
	w.t.Helper()
	return w.beside(func(reserve []string) (n int) {
		for info, err := range w.store.All(w.t.Context()) {
			if err != nil {
				w.t.Fatal(err)
			}
			if info.Size > 0 || !slices.Contains(reserve, info.ID.String()) {
				n++
			}
		}
		return n
	})
}

// rows counts the rows of blobs, without the reserve's.
func (w *world) rows() int {
	w.t.Helper()
	return w.beside(func(reserve []string) int {
		return w.count("SELECT count(*) FROM objects.blobs WHERE state <> 'pending' OR id <> ALL ($1::text[]::uuid[])", reserve)
	})
}

// pending counts the blobs of uploads in progress or abandoned.
func (w *world) pending() int {
	w.t.Helper()
	return w.beside(func(reserve []string) int {
		return w.count("SELECT count(*) FROM objects.blobs WHERE state = 'pending' AND id <> ALL ($1::text[]::uuid[])", reserve)
	})
}

// nothingLeft checks that refused uploads left neither a version nor a blob, and that the reserve is complete.
func (w *world) nothingLeft(versions, blobs int) {
	w.t.Helper()
	if n := w.count("SELECT count(*) FROM objects.versions"); n != versions {
		w.t.Errorf("%d versions are recorded, want %d", n, versions)
	}
	if n := w.pending(); n != 0 {
		w.t.Errorf("%d blobs are still pending", n)
	}
	if n := w.blobs(); n != blobs {
		w.t.Errorf("%d blobs are stored, want %d", n, blobs)
	}
	w.reserveIsWhole()
}

// reserveIsWhole checks that each blob of the reserve is announced and has an empty place.
func (w *world) reserveIsWhole() {
	w.t.Helper()
	missing := w.beside(func(reserve []string) int {
		n := 2*len(reserve) - w.count("SELECT count(*) FROM objects.blobs WHERE state = 'pending' AND id = ANY ($1::text[]::uuid[])", reserve)
		for info, err := range w.store.All(w.t.Context()) {
			if err != nil {
				w.t.Fatal(err)
			}
			if info.Size == 0 && slices.Contains(reserve, info.ID.String()) {
				n--
			}
		}
		return n
	})
	if missing != 0 {
		w.t.Errorf("the reserve lacks %d rows or places", missing)
	}
}
