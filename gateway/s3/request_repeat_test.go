//go:build unix

package s3_test

import (
	"bytes"
	"crypto/md5"
	"encoding/base64"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	awss3 "github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	"github.com/fencegate/fencegate/gateway/objects"
	"github.com/fencegate/fencegate/internal/testenv"
)

// over are the ways in which a grant of orders/1001 with token 5 ends.
var over = map[string]func(*world){
	"superseded": func(w *world) { w.arm("orders/1001", 6) },
	"released": func(w *world) {
		w.exec("SELECT fence.end_grants(ARRAY['orders/1001'], ARRAY[5]::bigint[], ARRAY[NULL]::bytea[])")
	},
}

// repeated is a request that changes something, with its preconditions.
type repeated struct {
	status  int
	request func(w *world, bucket string) raw
	before  func(w *world, bucket string) // between the two attempts, while the grant is current
}

func (w *world) of(method, path, data string, header map[string]string) raw {
	return raw{
		creds: w.issue("orders/1001", 5), method: method, path: "/orders/" + path, header: header,
		body: strings.NewReader(data), size: int64(len(data)), invocation: "the one request",
	}
}

// version puts an object and returns its version's id.
func (w *world) version(bucket, key string) string {
	return *put(w.t, w.holder("orders/1001", 5), bucket, key, "data").VersionId
}

// goneSource deletes the source of a copy.
func goneSource(w *world, bucket string) {
	if _, err := w.holder("orders/1001", 5).DeleteObject(w.t.Context(), &awss3.DeleteObjectInput{Bucket: &bucket, Key: aws.String("1001/source")}); err != nil {
		w.t.Fatal(err)
	}
}

var repetitions = map[string]repeated{
	"PutObject":        {status: 200, request: func(w *world, _ string) raw { return w.of("PUT", invoice, "new", nil) }},
	"PutObject, large": {status: 200, request: func(w *world, _ string) raw { return w.of("PUT", invoice, strings.Repeat("x", 1<<17), nil) }},
	"PutObject, condition": {status: 200, request: func(w *world, _ string) raw {
		return w.of("PUT", invoice, "new", map[string]string{"If-None-Match": "*"})
	}},
	"PutObject, staged": {status: 200, request: func(w *world, _ string) raw {
		return w.of("PUT", invoice, "new", map[string]string{"Fencing-Stage": "true"})
	}},
	"PutObject, large and staged": {status: 200, request: func(w *world, _ string) raw {
		return w.of("PUT", invoice, strings.Repeat("x", 1<<17), map[string]string{"Fencing-Stage": "true"})
	}},
	"CopyObject, staged": {status: 200, request: func(w *world, bucket string) raw {
		w.version(bucket, "1001/source")
		return w.of("PUT", invoice, "", map[string]string{"X-Amz-Copy-Source": "/orders/1001/source", "Fencing-Stage": "true"})
	}},
	"DeleteObject": {status: 204, request: func(w *world, bucket string) raw {
		w.version(bucket, invoice)
		return w.of("DELETE", invoice, "", nil)
	}},
	"DeleteObject of a version": {status: 204, request: func(w *world, bucket string) raw {
		return w.of("DELETE", invoice+"?versionId="+w.version(bucket, invoice), "", nil)
	}},
	"DeleteObject of a version, without an id": {status: 204, request: func(w *world, bucket string) raw {
		r := w.of("DELETE", invoice+"?versionId="+w.version(bucket, invoice), "", nil)
		r.invocation = none
		return r
	}},
	"DeleteObject of a version, condition": {status: 204, request: func(w *world, bucket string) raw {
		return w.of("DELETE", invoice+"?versionId="+w.version(bucket, invoice), "", map[string]string{"X-Amz-If-Match-Size": "4"})
	}},
	"DeleteObjects": {status: 200, request: func(w *world, bucket string) raw {
		id, marker := w.version(bucket, invoice), w.version(bucket, "1001/other")
		const list = "<Delete><Object><Key>%s</Key><VersionId>%s</VersionId></Object><Object><Key>1001/other</Key></Object><Object><Key>1001/other</Key><VersionId>%s</VersionId></Object></Delete>"
		text := fmt.Sprintf(list, invoice, id, marker)
		sum := md5.Sum([]byte(text))
		return w.of("POST", "?delete", text, map[string]string{"Content-Md5": base64.StdEncoding.EncodeToString(sum[:])})
	}},
	"CopyObject": {status: 200, request: func(w *world, bucket string) raw {
		w.version(bucket, "1001/source")
		return w.of("PUT", invoice, "", map[string]string{"X-Amz-Copy-Source": "/orders/1001/source"})
	}},
	"CopyObject, the source is gone": {status: 200, before: goneSource, request: func(w *world, bucket string) raw {
		w.version(bucket, "1001/source")
		return w.of("PUT", invoice, "", map[string]string{"X-Amz-Copy-Source": "/orders/1001/source"})
	}},
	"CopyObject, staged, the source is gone": {status: 200, before: goneSource, request: func(w *world, bucket string) raw {
		w.version(bucket, "1001/source")
		return w.of("PUT", invoice, "", map[string]string{"X-Amz-Copy-Source": "/orders/1001/source", "Fencing-Stage": "true"})
	}},
	"CopyObject of a version onto its key": {status: 200, request: func(w *world, bucket string) raw {
		id := w.version(bucket, invoice)
		w.version(bucket, invoice)
		return w.of("PUT", invoice, "", map[string]string{"X-Amz-Copy-Source": "/orders/" + invoice + "?versionId=" + id})
	}},
	"PutObjectTagging": {status: 200, request: func(w *world, bucket string) raw {
		w.version(bucket, invoice)
		return w.of("PUT", invoice+"?tagging", "<Tagging><TagSet><Tag><Key>a</Key><Value>b</Value></Tag></TagSet></Tagging>", nil)
	}},
	"DeleteObjectTagging": {status: 204, request: func(w *world, bucket string) raw {
		w.version(bucket, invoice)
		return w.of("DELETE", invoice+"?tagging", "", nil)
	}},
	"CreateMultipartUpload": {status: 200, request: func(w *world, _ string) raw { return w.of("POST", invoice+"?uploads", "", nil) }},
	"UploadPart": {status: 200, request: func(w *world, bucket string) raw {
		m := begin(w.t, w.holder("orders/1001", 5), bucket, "")
		return w.of("PUT", invoice+"?partNumber=1&uploadId="+*m.id, "part", nil)
	}},
	"CompleteMultipartUpload": {status: 200, request: func(w *world, bucket string) raw {
		m := begin(w.t, w.holder("orders/1001", 5), bucket, "")
		m.part(1, []byte("part"))
		return w.of("POST", invoice+"?uploadId="+*m.id, fmt.Sprintf("<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>%s</ETag></Part></CompleteMultipartUpload>", *m.parts[0].ETag), nil)
	}},
	"CompleteMultipartUpload, root with the grant": {status: 200, request: func(w *world, bucket string) raw {
		m := begin(w.t, w.holder("orders/1001", 5), bucket, "")
		m.part(1, []byte("part"))
		r := w.of("POST", invoice+"?uploadId="+*m.id, fmt.Sprintf("<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>%s</ETag></Part></CompleteMultipartUpload>", *m.parts[0].ETag),
			map[string]string{"Fencing-Token": "the grant"})
		r.creds.AccessKeyID, r.creds.SecretAccessKey, r.creds.SessionToken = rootAccess, rootSecret, ""
		return r
	}},
	"AbortMultipartUpload": {status: 204, request: func(w *world, bucket string) raw {
		m := begin(w.t, w.holder("orders/1001", 5), bucket, "")
		return w.of("DELETE", invoice+"?uploadId="+*m.id, "", nil)
	}},
}

// again sends the same request again.
func (w *world) again(r raw, data []byte) (*http.Response, string) {
	w.t.Helper()
	r.body = bytes.NewReader(data)
	return w.send(r)
}

// A client whose answer was lost repeats its request. It gets the first result even if the grant is over by then, and
// nothing is done twice.
func TestWhatWasDoneIsSaidToBeDoneWhenTheGrantIsOver(t *testing.T) {
	t.Parallel()
	for end, finish := range over {
		for name, c := range repetitions {
			t.Run(name+", "+end, func(t *testing.T) {
				t.Parallel()
				w := setup(t)
				bucket := w.keeping(objects.Keep{All: true})
				presented := w.seal("orders/1001", 5)
				r := c.request(w, bucket)
				if r.header["Fencing-Token"] != "" {
					r.header["Fencing-Token"] = presented
				}
				data := new(bytes.Buffer)
				if _, err := data.ReadFrom(r.body); err != nil {
					t.Fatal(err)
				}
				first, text := w.again(r, data.Bytes())
				if first.StatusCode != c.status || strings.Contains(text, "<Error>") {
					t.Fatalf("first: got %d %s", first.StatusCode, text)
				}
				if c.before != nil {
					c.before(w, bucket)
				}
				finish(w)
				const rows = "SELECT (SELECT count(*) FROM objects.versions) * 1000 + (SELECT count(*) FROM objects.pointers)"
				before := w.count(rows)
				second, said := w.again(r, data.Bytes())
				if second.StatusCode != c.status || strings.Contains(said, "<Error>") || second.Header.Get("Etag") != first.Header.Get("Etag") ||
					second.Header.Get("Fencing-Stage") != first.Header.Get("Fencing-Stage") {
					t.Errorf("again: got %d %s", second.StatusCode, said)
				}
				if n := w.count(rows); n != before {
					t.Errorf("%d versions and objects, before it was repeated %d", n, before)
				}
				r.invocation = "another request"
				idempotent := strings.HasPrefix(name, "DeleteObject of a version") || strings.HasPrefix(name, "CompleteMultipartUpload")
				if other, said := w.again(r, data.Bytes()); !idempotent && other.StatusCode < 400 && !strings.Contains(said, "<Error>") {
					t.Errorf("another request under a grant that is over: got %d %s", other.StatusCode, said)
				}
			})
		}
	}
}

// A repeated part gets the ETag of what its first attempt stored, although another request has replaced that since,
// and the source of a copy is gone.
func TestARepeatedPartThatWasReplacedHasItsOwnETag(t *testing.T) {
	t.Parallel()
	for name, header := range map[string]map[string]string{"UploadPart": nil, "UploadPartCopy": {"X-Amz-Copy-Source": "/orders/1001/source"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := setup(t)
			w.arm("orders/1001", 5)
			bucket := w.keeping(objects.Keep{All: true})
			w.version(bucket, "1001/source")
			m := begin(t, w.holder("orders/1001", 5), bucket, types.ChecksumAlgorithmSha256)
			data := "part"
			if header != nil {
				data = ""
			}
			r := w.of("PUT", invoice+"?partNumber=1&uploadId="+*m.id, data, header)
			answered := func() string {
				res, text := w.again(r, []byte(data))
				if res.StatusCode != http.StatusOK {
					t.Fatalf("got %d %s", res.StatusCode, text)
				}
				at, _, _ := strings.Cut(text, "<LastModified>")
				_, sums, _ := strings.Cut(text, "</LastModified>")
				return res.Header.Get("Etag") + res.Header.Get("X-Amz-Checksum-Sha256") + at + sums
			}
			first := answered()
			m.part(1, []byte("newer"))
			goneSource(w, bucket)
			w.arm("orders/1001", 6)
			if second := answered(); second != first {
				t.Errorf("first %s, then %s", first, second)
			}
		})
	}
}

// An attempt that has passed the check may still commit while the next attempt finds the grant superseded. The next one
// waits, and returns the first one's result.
func TestARefusalWaitsForTheEarlierAttempt(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"PutObject", "PutObject, large", "DeleteObject", "DeleteObject of a version", "PutObjectTagging", "UploadPart", "AbortMultipartUpload"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := setup(t)
			bucket := w.keeping(objects.Keep{All: true})
			w.arm("orders/1001", 5)
			if name == "PutObject" || name == "PutObject, large" {
				w.version(bucket, invoice)
			}
			r := repetitions[name].request(w, bucket)
			data := new(bytes.Buffer)
			if _, err := data.ReadFrom(r.body); err != nil {
				t.Fatal(err)
			}
			tx, err := w.admin.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = tx.Rollback(t.Context()) }()
			const waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
			if _, err := tx.Exec(t.Context(), map[bool]string{
				true:  "LOCK TABLE objects.parts IN SHARE MODE",
				false: "SELECT FROM objects.pointers FOR UPDATE",
			}[name == "UploadPart" || name == "AbortMultipartUpload"]); err != nil {
				t.Fatal(err)
			}
			r.body = bytes.NewReader(data.Bytes())
			first := w.async(r)
			testenv.Eventually(t, "the first attempt waits", func() bool { return w.count(waiting) == 1 })
			if _, err := w.admin.Exec(t.Context(), "SELECT fence.raise('orders/1001', 6, sha256('6'), 'test')"); err != nil { // without draining it
				t.Fatal(err)
			}
			r.body = bytes.NewReader(data.Bytes())
			second := w.async(r)
			testenv.Eventually(t, "the second attempt waits, too", func() bool { return w.count(waiting) == 2 || len(second) == 1 })
			if err := tx.Commit(t.Context()); err != nil {
				t.Fatal(err)
			}
			a, b := <-first, <-second
			if a.status != b.status {
				t.Errorf("the first attempt got %+v, the second %+v", a, b)
			}
		})
	}
}
