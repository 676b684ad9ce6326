//go:build unix

package s3_test

import (
	"net/http"
	"testing"
)

// A key may look as if it contained a version id.
func TestACopysSourceIsTheKeyThatIsNamed(t *testing.T) {
	t.Parallel()
	w := setup(t)
	bucket := w.bucket()
	c := w.lease("orders/1001", 5)
	put(t, c, bucket, "1001/a", "plain")
	put(t, c, bucket, "1001/a?versionId=null", "odd")
	for source, want := range map[string]string{
		"orders/1001/a": "plain", "/orders%2F1001%2Fa": "plain", "/orders/1001/a?versionId=null": "plain",
		"orders/1001/a%3FversionId%3Dnull": "odd", "orders/1001/a%3FversionId%3Dnull?versionId=null": "odd", "orders/1001/a%3FversionId=null": "odd",
	} {
		if res, text := w.send(raw{creds: w.issue("orders/1001", 5), method: "PUT", path: "/orders/1001/copy", header: map[string]string{"X-Amz-Copy-Source": source}}); res.StatusCode != http.StatusOK {
			t.Errorf("%s: got %d %s", source, res.StatusCode, text)
		}
		if got := get(t, c, bucket, "1001/copy"); got != want {
			t.Errorf("%s: the copy holds %q, want %q", source, got, want)
		}
	}
}
