//go:build unix

package s3_test

import (
	"strings"
	"testing"
)

func TestEachAnswerHasOneIDOfItsRequest(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.bucket()
	w.lease("orders/1001", 5)
	creds, object := w.issue("orders/1001", 5), "/orders/"+invoice
	for _, r := range []struct {
		raw
		status int
	}{
		{raw{method: "PUT", path: object, body: strings.NewReader("text"), size: 4}, 200},
		{raw{method: "GET", path: object}, 200},
		{raw{method: "HEAD", path: object}, 200},
		{raw{method: "GET", path: object, header: map[string]string{"If-None-Match": `"1cb251ec0d568de6a929b520c4aed8d1"`}}, 304},
		{raw{method: "GET", path: "/orders/1001/missing"}, 404},
		{raw{method: "GET", path: "/orders"}, 200},
		{raw{method: "DELETE", path: object}, 204},
	} {
		r.creds = creds
		res, text := w.send(r.raw)
		if res.StatusCode != r.status {
			t.Errorf("%s %s: %d %s; want %d", r.method, r.path, res.StatusCode, text, r.status)
		}
		for _, name := range []string{"X-Amz-Request-Id", "X-Amz-Id-2"} {
			if got := res.Header.Values(name); len(got) != 1 || got[0] == "" {
				t.Errorf("%s %s: %s %q", r.method, r.path, name, got)
			}
		}
	}
}
