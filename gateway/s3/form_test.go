//go:build unix

package s3_test

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"maps"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/gateway/s3/credentials"
)

// form returns a browser's form with a policy signed by the credentials' holder.
func form(c credentials.Credentials, key, data string, more map[string]string) string {
	return formUnder(c, key, data, more)
}

// formUnder is form with conditions beyond those that the fields meet.
func formUnder(c credentials.Credentials, key, data string, more map[string]string, conditions ...string) string {
	now := time.Now().UTC()
	fields := map[string]string{
		"key": key, "x-amz-algorithm": "AWS4-HMAC-SHA256", "x-amz-date": now.Format("20060102T150405Z"),
		"x-amz-credential": scope(c, now),
	}
	if c.SessionToken != "" {
		fields["x-amz-security-token"] = c.SessionToken
	}
	maps.Copy(fields, more)
	for name, value := range fields {
		conditions = append(conditions, fmt.Sprintf("{%q: %q}", name, value))
	}
	policy := fmt.Sprintf(`{"expiration": %q, "conditions": [{"bucket": "orders"}, %s]}`, now.Add(time.Hour).Format(time.RFC3339), strings.Join(conditions, ", "))
	fields["policy"] = base64.StdEncoding.EncodeToString([]byte(policy))
	signing := []byte("AWS4" + c.SecretAccessKey)
	for _, part := range []string{strings.Split(fields["x-amz-credential"], "/")[1], "us-east-1", "s3", "aws4_request", fields["policy"]} {
		mac := hmac.New(sha256.New, signing)
		mac.Write([]byte(part))
		signing = mac.Sum(nil)
	}
	fields["x-amz-signature"] = hex.EncodeToString(signing)
	var text strings.Builder
	for name, value := range fields {
		fmt.Fprintf(&text, "--b\r\nContent-Disposition: form-data; name=%q\r\n\r\n%s\r\n", name, value)
	}
	return text.String() + "--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"f\"\r\n\r\n" + data + formTail
}

func scope(c credentials.Credentials, at time.Time) string {
	return c.AccessKeyID + "/" + at.Format("20060102") + "/us-east-1/s3/aws4_request"
}

func (w *world) post(text string, header map[string]string) (int, string) {
	w.t.Helper()
	req, err := http.NewRequestWithContext(w.t.Context(), http.MethodPost, w.url("/orders"), strings.NewReader(text))
	if err != nil {
		w.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "multipart/form-data; boundary=b")
	for name, value := range header {
		req.Header.Set(name, value)
	}
	res, err := httpClient(w.t).Do(req)
	if err != nil {
		w.t.Fatal(err)
	}
	return res.StatusCode, readAll(w.t, res.Body)
}

// A browser's upload is fenced like any other: its policy is signed with a lease's credentials.
func TestAFormWritesUnderTheGrantThatSignedIt(t *testing.T) {
	t.Parallel()
	w := setup(t)
	bucket := w.bucket()
	w.arm("orders/1001", 4)
	w.arm("orders/1001", 5)
	current, stale, root := w.issue("orders/1001", 5), w.issue("orders/1001", 4), credentials.Credentials{AccessKeyID: rootAccess, SecretAccessKey: rootSecret}
	if status, text := w.post(form(current, invoice, "data", nil), nil); status != http.StatusNoContent {
		t.Fatalf("got %d %s", status, text)
	}
	if got := get(t, w.root(), bucket, invoice); got != "data" {
		t.Errorf("the object holds %q", got)
	}
	sealed := fence.Grant{Resource: "orders/1003", Token: 3, Seal: fence.NewSeal()}
	w.armHash(sealed.Resource, sealed.Token, sealed.Seal.Hash())
	before := w.state()
	for name, c := range map[string]struct {
		text   string
		header map[string]string
		status int
		code   string
	}{
		"stale":          {text: form(stale, invoice, "late", nil), status: 412, code: "StaleFencingToken"},
		"root":           {text: form(root, invoice, "x", nil), status: 403, code: "MissingFencingToken"},
		"other resource": {text: form(current, "1002/x", "x", nil), status: 403, code: "WrongFencingResource"},
		"header that nobody signed": {text: form(root, "1003/x", "x", nil), header: map[string]string{
			"Fencing-Token": sealed.Presented(), "Authorization": "AWS4-HMAC-SHA256 Credential=" + rootAccess + "/x, SignedHeaders=fencing-token, Signature=0",
		}, status: 403, code: "InvalidFencingToken"},
		"forged signature": {text: strings.Replace(form(current, invoice, "x", nil), `"x-amz-signature"`+"\r\n\r\n", `"x-amz-signature"`+"\r\n\r\n0", 1), status: 403, code: "SignatureDoesNotMatch"},
		"unsigned":         {text: formHead + "x" + formTail, status: 403, code: "AccessDenied"},
		"ACL":              {text: form(current, invoice, "x", map[string]string{"acl": "public-read"}), status: 501, code: "NotImplemented"},
		"encryption":       {text: form(current, invoice, "x", map[string]string{"x-amz-server-side-encryption": "AES256"}), status: 501, code: "NotImplemented"},
		"long key":         {text: form(current, "1001/"+strings.Repeat("k", 1024), "x", nil), status: 400, code: "KeyTooLong"},
		"long form":        {text: form(current, invoice, strings.Repeat("x", 2*mib), nil), status: 400, code: "EntityTooLarge"},
	} {
		if status, text := w.post(c.text, c.header); status != c.status || !strings.Contains(text, "<Code>"+c.code) {
			t.Errorf("%s: got %d %.300s, want %d %s", name, status, text, c.status, c.code)
		}
	}
	// Uploads that are refused at their commit have used a reserved blob.
	if n, blobs := w.count("SELECT count(*) FROM objects.blobs WHERE state = 'condemned'"), w.blobs(); n != 2 || blobs != 1 {
		t.Errorf("%d uploads were given up, want 2; %d blobs are stored, want 1", n, blobs)
	}
	w.exec("DELETE FROM objects.blobs WHERE state = 'condemned'")
	if after := w.state(); after != before {
		t.Errorf("something changed:\n%s\n%s", before, after)
	}
}
