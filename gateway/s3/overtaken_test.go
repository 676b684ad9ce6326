//go:build unix

package s3_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/fencegate/fencegate/internal/testenv"
)

// If another attempt of a completion finishes while this one reads the parts, both return the same answer.
func TestACompletionThatIsOvertakenSaysThatItIsDone(t *testing.T) {
	t.Parallel()
	w := setup(t)
	bucket := w.bucket()
	m := begin(t, w.lease("orders/1001", 5), bucket, "")
	m.part(1, []byte("data"))
	tx, err := w.admin.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(t.Context()) }()
	if _, err := tx.Exec(t.Context(), "LOCK TABLE objects.parts IN ACCESS EXCLUSIVE MODE"); err != nil {
		t.Fatal(err)
	}
	list := fmt.Sprintf("<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>%s</ETag></Part></CompleteMultipartUpload>", *m.parts[0].ETag)
	done := w.async(raw{creds: w.issue("orders/1001", 5), method: "POST", path: "/orders/" + invoice + "?uploadId=" + *m.id, body: body(list), size: int64(len(list))})
	testenv.Eventually(t, "it waits for the parts", func() bool {
		return w.count("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%FROM objects.parts%' AND datname = current_database()") == 1
	})
	const overtake = `SELECT objects.complete_multipart(u.id, u.bucket, u.key, ARRAY[p.blob], ARRAY[p.size], md5(decode(p.etag, 'hex')) || '-1', '{}', u.resource, u.token, NULL, NULL, NULL, false)
		FROM objects.uploads u JOIN objects.parts p ON p.upload = u.id`
	if _, err := tx.Exec(t.Context(), overtake); err != nil {
		t.Fatal(err)
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if a := <-done; a.status != http.StatusOK || !strings.Contains(a.body, "-1&#34;</ETag>") {
		t.Errorf("got %+v", a)
	}
	if got := get(t, m.c, bucket, invoice); got != "data" {
		t.Errorf("the object holds %q", got)
	}
}
