//go:build unix

package s3_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awss3 "github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/gateway/s3/credentials"
)

const invoice = "1001/invoice.txt"

func TestAStaleUploadIsRefusedAndChangesNothing(t *testing.T) {
	t.Parallel()
	bothWays(t, func(t *testing.T, way option) {
		w := setup(t, way)
		bucket := w.bucket()
		old := w.lease("orders/1001", 34)
		put(t, old, bucket, invoice, "by 34")
		current := w.lease("orders/1001", 35)
		_, err := tryPut(t, old, bucket, invoice, "by 34 again")
		wantRefused(t, err, 412, "StaleFencingToken", "34", "35", "orders/1001")
		if got := get(t, current, bucket, invoice); got != "by 34" {
			t.Errorf("the object holds %q", got)
		}
		put(t, current, bucket, invoice, "by 35")
		_, err = old.DeleteObject(t.Context(), &awss3.DeleteObjectInput{Bucket: &bucket, Key: aws.String(invoice)})
		wantRefused(t, err, 412, "StaleFencingToken", "34", "35")
		if got := get(t, w.root(), bucket, invoice); got != "by 35" {
			t.Errorf("the object holds %q", got)
		}
		w.nothingLeft(2, 2)
	})
}

func TestAnUploadThatBecomesStaleOnItsWayIsRefusedAtTheCommit(t *testing.T) {
	t.Parallel()
	w := setup(t)
	bucket := w.bucket()
	put(t, w.lease("orders/1001", 7), bucket, invoice, "the old object")
	slow := newHalf(3 << 20)
	done := w.async(raw{creds: w.issue("orders/1001", 7), method: "PUT", path: "/orders/" + invoice, body: slow, size: 3 << 20})
	w.underWay(slow)
	w.arm("orders/1001", 8) // completes: an upload in progress does not delay it
	close(slow.resume)
	if a := <-done; a.status != 412 || !strings.Contains(a.body, "StaleFencingToken") {
		t.Errorf("got %+v", a)
	}
	if got := get(t, w.root(), bucket, invoice); got != "the old object" {
		t.Errorf("the object holds %q", got[:min(len(got), 30)])
	}
	w.nothingLeft(1, 1)
}

func TestARefusalNamesItsFactsInXMLAndHeaders(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.bucket()
	w.arm("orders/ü", 9)
	res, text := w.send(raw{creds: w.issue("orders/ü", 8), method: "PUT", path: "/orders/%C3%BC/x", body: body("x"), size: 1})
	if res.StatusCode != http.StatusPreconditionFailed || res.Header.Get("Fencing-Code") != "ZF001" || res.Header.Get("Fencing-Recorded") != "9" ||
		res.Header.Get("Fencing-Resource") != "orders/%C3%BC" {
		t.Errorf("got %d %v", res.StatusCode, res.Header)
	}
	for _, want := range []string{
		"<Code>StaleFencingToken</Code>", "<FencingTokenPresented>8</FencingTokenPresented>",
		"<FencingTokenRecorded>9</FencingTokenRecorded>", "<FencingResource>orders/ü</FencingResource>", "<FencingCode>ZF001</FencingCode>", "<RequestId>",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the XML lacks %s:\n%s", want, text)
		}
	}
}

func TestAWriteNeedsTheGrantOfTheKeysResource(t *testing.T) {
	t.Parallel()
	bothWays(t, func(t *testing.T, way option) {
		w := setup(t, way)
		bucket := w.bucket()
		other := w.lease("orders/1002", 3)
		_, err := tryPut(t, other, bucket, invoice, "x")
		wantRefused(t, err, 403, "WrongFencingResource", "orders/1002", "orders/1001")
		_, err = tryPut(t, w.root(), bucket, invoice, "x")
		wantRefused(t, err, 403, "MissingFencingToken", "orders/1001")
		_, err = w.root().DeleteObject(t.Context(), &awss3.DeleteObjectInput{Bucket: &bucket, Key: aws.String(invoice)})
		wantRefused(t, err, 403, "MissingFencingToken", "orders/1001")
		_, err = tryPut(t, w.holder("orders/1001", 4), bucket, invoice, "x") // never armed
		wantRefused(t, err, 403, "InvalidFencingToken")
		w.arm("orders/1001", 4)
		_, err = tryPut(t, w.holder("orders/1001", 5), bucket, invoice, "x") // above the recorded token: never issued
		wantRefused(t, err, 403, "InvalidFencingToken")
		w.nothingLeft(0, 0)
	})
}

func TestForgedAndExpiredCredentialsAreRefused(t *testing.T) {
	t.Parallel()
	w := setup(t)
	bucket := w.bucket()
	w.arm("orders/1001", 5)
	good := w.issue("orders/1001", 5)
	other := w.issue("orders/1002", 5)
	foreignKeys, err := credentials.ParseKeyring("test:" + strings.Repeat("50", 32))
	if err != nil {
		t.Fatal(err)
	}
	foreign, err := foreignKeys.Issue("orders/1001", 5, time.Now().Add(time.Hour), 0)
	if err != nil {
		t.Fatal(err)
	}
	expired, err := w.keys.Issue("orders/1001", 5, time.Now().Add(-time.Second), 0)
	if err != nil {
		t.Fatal(err)
	}
	flipped := good
	flipped.SessionToken = flip(good.SessionToken)
	swapped := good
	swapped.SessionToken = other.SessionToken
	secret := good
	secret.SecretAccessKey = other.SecretAccessKey
	bare := good
	bare.SessionToken = ""
	rooted := credentials.Credentials{AccessKeyID: rootAccess, SecretAccessKey: rootSecret, SessionToken: good.SessionToken}
	for name, c := range map[string]struct {
		creds  credentials.Credentials
		status int
		code   string
	}{
		"made with another master key":    {foreign, 400, "InvalidToken"},
		"one character changed":           {flipped, 400, "InvalidToken"},
		"another lease's session token":   {swapped, 400, "InvalidToken"},
		"another lease's secret":          {secret, 403, "SignatureDoesNotMatch"},
		"without the session token":       {bare, 400, "InvalidToken"},
		"root's key with a session token": {rooted, 400, "InvalidToken"},
		"root's key with a wrong secret":  {credentials.Credentials{AccessKeyID: rootAccess, SecretAccessKey: "guess"}, 403, "SignatureDoesNotMatch"},
		"an unknown key":                  {credentials.Credentials{AccessKeyID: "AKIAUNKNOWN", SecretAccessKey: "x"}, 403, "InvalidAccessKeyId"},
		"expired":                         {expired, 400, "ExpiredToken"},
	} {
		_, err := tryPut(t, w.client(c.creds), bucket, invoice, "x")
		t.Log(name)
		wantRefused(t, err, c.status, c.code)
		_, err = w.client(c.creds).ListObjectsV2(t.Context(), &awss3.ListObjectsV2Input{Bucket: &bucket})
		wantRefused(t, err, c.status, c.code)
	}
	res, text := w.send(raw{method: "GET", path: "/orders", creds: good, unsigned: map[string]string{"Authorization": ""}})
	if res.StatusCode != http.StatusForbidden {
		t.Errorf("an anonymous request: got %d %s", res.StatusCode, text)
	}
	w.nothingLeft(0, 0)
}

// flip changes one character in the middle.
func flip(s string) string {
	b := []byte(s)
	if i := len(b) / 2; b[i] == 'A' {
		b[i] = 'B'
	} else {
		b[i] = 'A'
	}
	return string(b)
}

func TestUnsignedHeadersAreNotTrusted(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.bucket()
	w.arm("orders/1001", 5)
	creds := w.issue("orders/1001", 5)
	res, text := w.send(raw{
		creds: creds, method: "PUT", path: "/orders/" + invoice, body: body("x"), size: 1,
		unsigned: map[string]string{"X-Amz-Meta-Colour": "red"},
	})
	if res.StatusCode != http.StatusForbidden {
		t.Errorf("unsigned metadata: got %d %s", res.StatusCode, text)
	}
	w.nothingLeft(0, 0)
}

func TestAPresignedURLReadsAndIsFencedAsAWrite(t *testing.T) {
	t.Parallel()
	w := setup(t)
	bucket := w.bucket()
	holder := w.lease("orders/1001", 5)
	put(t, holder, bucket, invoice, "hello")
	presign := awss3.NewPresignClient(holder)
	url, err := presign.PresignGetObject(t.Context(), &awss3.GetObjectInput{Bucket: &bucket, Key: aws.String(invoice)})
	if err != nil {
		t.Fatal(err)
	}
	write, err := presign.PresignPutObject(t.Context(), &awss3.PutObjectInput{Bucket: &bucket, Key: aws.String(invoice)})
	if err != nil {
		t.Fatal(err)
	}
	do := func(method, url, data string) (int, string) {
		req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(data))
		if err != nil {
			t.Fatal(err)
		}
		res, err := httpClient(t).Do(req)
		if err != nil {
			t.Fatal(err)
		}
		return res.StatusCode, readAll(t, res.Body)
	}
	if status, data := do("GET", url.URL, ""); status != 200 || data != "hello" {
		t.Errorf("read: got %d %q", status, data)
	}
	if status, data := do("PUT", write.URL, "by URL"); status != 200 {
		t.Errorf("write: got %d %q", status, data)
	}
	w.arm("orders/1001", 6)
	if status, data := do("PUT", write.URL, "by a stale URL"); status != 412 || !strings.Contains(data, "StaleFencingToken") {
		t.Errorf("stale write: got %d %q", status, data)
	}
	if status, data := do("GET", url.URL, ""); status != 200 || data != "by URL" {
		t.Errorf("read: got %d %q", status, data)
	}
}

func TestOnlyTheGatewaysLoginTouchesTheTables(t *testing.T) {
	t.Parallel()
	w := setup(t)
	for name, url := range map[string]string{"writer": w.pg.WriterURL, "other": w.pg.OtherURL} {
		pool := poolOf(t, url)
		for _, sql := range []string{
			"SELECT * FROM objects.pointers", "DELETE FROM objects.pointers", "SELECT objects.delete_bucket('orders')",
			"SELECT objects.abandon_upload(gen_random_uuid())", "SELECT objects.supersede(gen_random_uuid())",
		} {
			if _, err := pool.Exec(t.Context(), sql); err == nil || !strings.Contains(err.Error(), "permission denied") {
				t.Errorf("%s: %s: got %v", name, sql, err)
			}
		}
	}
	gateway := poolOf(t, w.pg.GatewayURL)
	for _, sql := range []string{"DELETE FROM objects.pointers", "UPDATE objects.versions SET token = 1", "SELECT objects.supersede(gen_random_uuid())"} {
		if _, err := gateway.Exec(t.Context(), sql); err == nil || !strings.Contains(err.Error(), "permission denied") {
			t.Errorf("gateway: %s: got %v", sql, err)
		}
	}
}

// seal arms with a seal and returns the holder's header.
func (w *world) seal(resource string, token fence.Token) string {
	w.t.Helper()
	g := fence.Grant{Resource: resource, Token: token, Seal: fence.NewSeal()}
	w.armHash(resource, token, g.Seal.Hash())
	return g.Presented()
}

func TestASignedTokenHeaderIsAGrantToo(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.bucket()
	rootCreds := credentials.Credentials{AccessKeyID: rootAccess, SecretAccessKey: rootSecret}
	presented := w.seal("orders/1001", 5)
	_, secret, _ := strings.Cut(presented, ".")
	send := func(method, token, data string, change func(*raw)) (int, string) {
		r := raw{creds: rootCreds, method: method, path: "/orders/" + invoice, body: body(data), size: int64(len(data)), header: map[string]string{"Fencing-Token": token}}
		if change != nil {
			change(&r)
		}
		res, text := w.send(r)
		if strings.Contains(text, secret) {
			t.Errorf("the answer shows the seal: %s", text)
		}
		return res.StatusCode, text
	}
	if status, text := send("PUT", presented, "one", nil); status != 200 {
		t.Errorf("got %d %s", status, text)
	}
	if status, text := send("PUT", "0."+secret, "two", nil); status != 200 {
		t.Errorf("the seal without its token: got %d %s", status, text)
	}
	if n := w.count("SELECT count(*) FROM objects.versions WHERE token = 5"); n != 2 {
		t.Errorf("%d versions record token 5, want 2", n)
	}
	for name, c := range map[string]struct {
		token  string
		change func(*raw)
	}{
		"another seal":      {"5." + strings.Repeat("ab", 16), nil},
		"no seal":           {"5", nil},
		"malformed":         {"5.xyz", nil},
		"another token":     {"6." + secret, nil},
		"not signed":        {"", func(r *raw) { r.header, r.unsigned = nil, map[string]string{"Fencing-Token": presented} }},
		"beside a lease's":  {presented, func(r *raw) { r.creds = w.issue("orders/1001", 5) }},
		"of another object": {presented, func(r *raw) { r.path = "/orders/1002/x" }},
	} {
		if status, text := send("PUT", c.token, "x", c.change); status != 403 || !strings.Contains(text, "InvalidFencingToken") {
			t.Errorf("%s: got %d %s", name, status, text)
		}
	}
	if got := get(t, w.root(), "orders", invoice); got != "two" {
		t.Errorf("the object holds %q", got)
	}
	newer := w.seal("orders/1001", 6)
	if status, text := send("PUT", presented, "x", nil); status != 412 || !strings.Contains(text, "StaleFencingToken") {
		t.Errorf("stale: got %d %s", status, text)
	}
	if status, text := send("DELETE", newer, "", nil); status != 204 {
		t.Errorf("delete: got %d %s", status, text)
	}
}
