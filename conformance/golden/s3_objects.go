package main

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"strings"
)

func sha256Of(s string) string {
	sum := sha256.Sum256([]byte(s))
	return base64.StdEncoding.EncodeToString(sum[:])
}

var helloSHA256 = sha256Of("hello")

// playObjects writes and reads objects, and their conditions.
func playObjects(ctx context.Context, w *world, b *book) error {
	t := &talk{ctx: ctx, w: w, b: b}
	if err := w.bucket(ctx, "g-objects", "prefix:1", ""); err != nil {
		return err
	}
	l, err := w.acquire(ctx, "g-objects/1")
	if err != nil {
		return err
	}
	h := l.keys
	b.part("PutObject")
	t.do(h, "PUT", "/g-objects/1/plain", body("hello"))
	t.do(h, "PUT", "/g-objects/1/plain", body("hello"), note("again"))
	t.do(h, "PUT", "/g-objects/1/empty")
	t.do(h, "PUT", "/g-objects/1/full", body("hello"), header(
		"Content-Type", "text/plain; charset=utf-8", "Cache-Control", "max-age=60", "Content-Disposition", `attachment; filename="f"`,
		"Content-Encoding", "identity", "Content-Language", "en", "Expires", "Wed, 21 Oct 2037 07:28:00 GMT", "X-Amz-Meta-Colour", "blue", "X-Amz-Meta-Size", "big one",
		"X-Amz-Tagging", "a=1&b=two%20words", "X-Amz-Acl", "private", "X-Amz-Storage-Class", "STANDARD", "Content-MD5", md5Of("hello")))
	for _, sum := range [][2]string{
		{"crc32", "NhCmhg=="}, {"crc32c", "mnG7TA=="}, {"sha1", "qvTGHdzF6KLavt4PO0gs2a6pQ00="}, {"sha256", helloSHA256}, {"crc64nvme", "M3eFcAZSQlc="},
	} {
		t.do(h, "PUT", "/g-objects/1/checksum-"+sum[0], body("hello"), header("X-Amz-Checksum-"+sum[0], sum[1]))
		t.do(h, "PUT", "/g-objects/1/checksum-"+sum[0], body("jello"), header("X-Amz-Checksum-"+sum[0], sum[1]))
	}
	t.do(h, "PUT", "/g-objects/1/two", body("hello"), header("X-Amz-Checksum-Sha256", helloSHA256, "X-Amz-Checksum-Crc32", "NhCmhg=="))
	t.do(h, "PUT", "/g-objects/1/wrong", body("hello"), header("X-Amz-Checksum-Sha256", "nonsense"))
	t.do(h, "PUT", "/g-objects/1/wrong", body("hello"), header("Content-MD5", md5Of("jello")))
	t.do(h, "PUT", "/g-objects/1/wrong", body("hello"), header("Content-MD5", "nonsense"))
	t.do(h, "PUT", "/g-objects/1/wrong", body("hello"), header("X-Amz-Tagging", "a=1&a=2"))
	t.do(h, "PUT", "/g-objects/1/wrong", body("hello"), header("X-Amz-Meta-Big", strings.Repeat("x", 3000)))

	b.part("conditions of a write")
	t.do(h, "PUT", "/g-objects/1/plain", body("x"), header("If-None-Match", "*"))
	t.do(h, "PUT", "/g-objects/1/once", body("x"), header("If-None-Match", "*"))
	t.do(h, "PUT", "/g-objects/1/plain", body("x"), header("If-None-Match", `"`+sumOf("hello")+`"`))
	t.do(h, "PUT", "/g-objects/1/plain", body("x"), header("If-Match", `"00000000000000000000000000000000"`))
	t.do(h, "PUT", "/g-objects/1/plain", body("hello"), header("If-Match", `"`+sumOf("hello")+`"`))
	t.do(h, "PUT", "/g-objects/1/nothing", body("x"), header("If-Match", `"`+sumOf("hello")+`"`))
	t.do(h, "PUT", "/g-objects/1/nothing", body("x"), header("If-Match", "*"))
	t.do(h, "PUT", "/g-objects/1/plain", body("x"), header("If-Match", ""))
	t.do(h, "PUT", "/g-objects/1/plain", body("x"), header("If-None-Match", ""))
	t.do(h, "GET", "/g-objects/1/plain")

	t.keysAndTags(h)
	return t.err
}

// keysAndTags writes keys of every kind, and an object's tags and metadata.
func (t *talk) keysAndTags(h principal) {
	t.b.part("keys")
	for _, key := range []string{
		"1/with%20space", "1/%C3%A4%E2%82%AC", "1/a%2Fb", "1/a//b", "1/plus+sign", "1/%2B%3F%23%26", "1/trailing/", "1/..%2Fx", "1/../y", "1/./z",
		"1/%00", "1/%FF", "1/" + strings.Repeat("k", 1022), "1/" + strings.Repeat("k", 1023), "1/%0A", "%2F1/x",
	} {
		t.do(h, "PUT", "/g-objects/"+key, body("hello"))
		t.do(root, "HEAD", "/g-objects/"+key)
	}

	t.b.part("tags, ACL, lock")
	tags := `<Tagging xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><TagSet><Tag><Key>c</Key><Value>3</Value></Tag></TagSet></Tagging>`
	t.do(root, "GET", "/g-objects/1/full?tagging")
	t.do(h, "PUT", "/g-objects/1/full?tagging", body(tags), header("Content-MD5", md5Of(tags)))
	t.do(h, "PUT", "/g-objects/1/full?tagging", body("<Tagging>"), header("Content-MD5", md5Of("<Tagging>")))
	t.do(h, "PUT", "/g-objects/1/nothing?tagging", body(tags), header("Content-MD5", md5Of(tags)))
	t.do(root, "PUT", "/g-objects/1/full?tagging", body(tags), header("Content-MD5", md5Of(tags)))
	t.do(root, "GET", "/g-objects/1/full?tagging")
	t.do(root, "DELETE", "/g-objects/1/full?tagging")
	t.do(h, "DELETE", "/g-objects/1/full?tagging")
	t.do(root, "GET", "/g-objects/1/full?tagging")
	t.do(root, "GET", "/g-objects/1/nothing?tagging")
	t.do(root, "GET", "/g-objects/1/full?acl")
	t.do(h, "PUT", "/g-objects/1/full?acl", header("X-Amz-Acl", "private"))
	t.do(h, "PUT", "/g-objects/1/full?acl", header("X-Amz-Acl", "bucket-owner-full-control"))
	t.do(h, "PUT", "/g-objects/1/full?acl", header("X-Amz-Acl", "public-read"))
	t.do(h, "PUT", "/g-objects/1/full?acl", header("X-Amz-Acl", "nonsense"))
	for _, sub := range []string{"retention", "legal-hold"} {
		t.do(root, "GET", "/g-objects/1/full?"+sub)
		t.do(h, "PUT", "/g-objects/1/full?"+sub, body(documentOf(sub)), header("Content-MD5", md5Of(documentOf(sub))))
	}
}

// readHeaders are the headers of reads of an object with this ETag.
func readHeaders(etag string) [][]string {
	return [][]string{
		{"Range", "bytes=0-3"},
		{"Range", "bytes=5-"},
		{"Range", "bytes=-3"},
		{"Range", "bytes=0-99"},
		{"Range", "bytes=99-"},
		{"Range", "bytes=3-1"},
		{"Range", "bytes=0-1,4-5"},
		{"Range", "nonsense"},
		{"Range", "bytes=-0"},
		{"Range", "bytes=9-9"},
		{"If-Match", etag},
		{"If-Match", `"x"`},
		{"If-Match", "*"},
		{"If-None-Match", etag},
		{"If-None-Match", `"x"`},
		{"If-None-Match", "*"},
		{"If-Modified-Since", "Sat, 01 Jan 2000 00:00:00 GMT"},
		{"If-Modified-Since", "Fri, 01 Jan 2100 00:00:00 GMT"},
		{"If-Unmodified-Since", "Sat, 01 Jan 2000 00:00:00 GMT"},
		{"If-Unmodified-Since", "Fri, 01 Jan 2100 00:00:00 GMT"},
		{"If-Modified-Since", "nonsense"},
		{"If-Match", `"x"`, "If-Unmodified-Since", "Fri, 01 Jan 2100 00:00:00 GMT"},
		{"If-None-Match", `"x"`, "If-Modified-Since", "Fri, 01 Jan 2100 00:00:00 GMT"},
		{"If-Range", etag, "Range", "bytes=0-3"},
		{"If-Range", `"x"`, "Range", "bytes=0-3"},
		{"X-Amz-Checksum-Mode", "ENABLED"},
		{"X-Amz-Checksum-Mode", "nonsense"},
		{"X-Amz-Checksum-Mode", "ENABLED", "Range", "bytes=0-3"},
		{"Accept-Encoding", "gzip"},
		{"X-Amz-Copy-Source", "g-reads/object"},
		{"X-Amz-Request-Payer", "requester"},
		{"X-Amz-Expected-Bucket-Owner", "somebody"},
		{"X-Amz-Expected-Bucket-Owner", rootAccess},
	}
}

// playReads reads one object in every way.
func playReads(ctx context.Context, w *world, b *book) error {
	t := &talk{ctx: ctx, w: w, b: b}
	if err := w.bucket(ctx, "g-reads", "none", ""); err != nil {
		return err
	}
	const object = "/g-reads/object"
	t.must(root, "PUT", object, body("0123456789"), header("Content-Type", "text/plain", "X-Amz-Meta-By", "golden", "X-Amz-Checksum-Sha256", sha256Of("0123456789"), "X-Amz-Tagging", "a=1"))
	t.must(root, "PUT", "/g-reads/empty")
	t.must(root, "PUT", "/g-reads/large", body(strings.Repeat("0123456789abcdef", 20<<10)))
	for _, method := range []string{"GET", "HEAD"} {
		b.part(method)
		for _, target := range []string{
			object, "/g-reads/empty", "/g-reads/large", "/g-reads/nothing", "/g-nowhere/object", object + "?versionId=null", object + "?versionId=nonsense",
			object + "?versionId=00000000000000000000000000000000", object + "?partNumber=1", object + "?partNumber=2", object + "?partNumber=0", object + "?partNumber=x", object + "/",
			object + "?x-id=GetObject", object + "?something=1", object + "?uploads", object + "?versions", object + "?uploadId=x",
		} {
			t.do(root, method, target)
		}
		for _, h := range readHeaders(`"` + sumOf("0123456789") + `"`) {
			t.do(root, method, object, header(h...))
		}
		t.do(root, method, "/g-reads/empty", header("Range", "bytes=0-3"))
		t.do(root, method, "/g-reads/large", header("Range", "bytes=10-25"))
		overrides := "?response-cache-control=a&response-content-disposition=b&response-content-encoding=c&response-content-language=d&response-content-type=e%2Ff&response-expires=Wed%2C%2021%20Oct%202037%2007%3A28%3A00%20GMT"
		t.do(root, method, object+overrides)
		t.do(anonymous, method, object+overrides)
		t.do(anonymous, method, object)
	}
	b.part("GetObjectAttributes")
	for _, what := range []string{"ETag,Checksum,ObjectParts,StorageClass,ObjectSize", "ObjectSize", "nonsense", ""} {
		t.do(root, "GET", object+"?attributes", header("X-Amz-Object-Attributes", what))
	}
	t.do(root, "GET", object+"?attributes")
	t.do(root, "GET", "/g-reads/nothing?attributes", header("X-Amz-Object-Attributes", "ETag"))
	return t.err
}

// playCopies copies objects.
func playCopies(ctx context.Context, w *world, b *book) error {
	t := &talk{ctx: ctx, w: w, b: b}
	for name, rule := range map[string]string{"g-copies": "prefix:1", "g-sources": "none"} {
		if err := w.bucket(ctx, name, rule, ""); err != nil {
			return err
		}
	}
	l, err := w.acquire(ctx, "g-copies/1")
	if err != nil {
		return err
	}
	h := l.keys
	t.must(root, "PUT", "/g-sources/a", body("hello"), header("Content-Type", "text/plain", "X-Amz-Meta-By", "golden", "X-Amz-Tagging", "a=1", "X-Amz-Checksum-Crc32", "NhCmhg=="))
	t.must(root, "PUT", "/g-sources/%C3%A4%20b", body("hello"))
	source := func(more ...string) option {
		return header(append([]string{"X-Amz-Copy-Source", "g-sources/a"}, more...)...)
	}
	b.part("CopyObject")
	t.do(h, "PUT", "/g-copies/1/copy", source())
	t.do(root, "HEAD", "/g-copies/1/copy", header("X-Amz-Checksum-Mode", "ENABLED"))
	t.do(root, "GET", "/g-copies/1/copy?tagging")
	t.do(h, "PUT", "/g-copies/1/copy", source("X-Amz-Metadata-Directive", "REPLACE", "X-Amz-Meta-By", "another", "Content-Type", "text/html"))
	t.do(root, "HEAD", "/g-copies/1/copy")
	t.do(h, "PUT", "/g-copies/1/copy", source("X-Amz-Tagging-Directive", "REPLACE", "X-Amz-Tagging", "b=2"))
	t.do(root, "GET", "/g-copies/1/copy?tagging")
	t.do(h, "PUT", "/g-copies/1/copy", source("X-Amz-Metadata-Directive", "nonsense"))
	t.do(h, "PUT", "/g-copies/1/copy", source("X-Amz-Tagging-Directive", "nonsense"))
	t.do(h, "PUT", "/g-copies/1/copy", source("X-Amz-Checksum-Algorithm", "SHA256"))
	t.do(h, "PUT", "/g-copies/1/copy", header("X-Amz-Copy-Source", "/g-sources/%C3%A4%20b"))
	t.do(h, "PUT", "/g-copies/1/copy", header("X-Amz-Copy-Source", "g-sources/nothing"))
	t.do(h, "PUT", "/g-copies/1/copy", header("X-Amz-Copy-Source", "g-nowhere/a"))
	t.do(h, "PUT", "/g-copies/1/copy", header("X-Amz-Copy-Source", "nonsense"))
	t.do(h, "PUT", "/g-copies/1/copy", header("X-Amz-Copy-Source", ""))
	t.do(h, "PUT", "/g-copies/1/copy", header("X-Amz-Copy-Source", "g-sources/a?versionId=null"))
	t.do(h, "PUT", "/g-copies/1/copy", header("X-Amz-Copy-Source", "g-sources/a?versionId=00000000000000000000000000000000"))
	t.do(h, "PUT", "/g-copies/1/copy", header("X-Amz-Copy-Source", "g-copies/1/copy"), note("onto itself"))
	t.do(h, "PUT", "/g-copies/1/copy", header("X-Amz-Copy-Source", "g-copies/1/copy", "X-Amz-Metadata-Directive", "REPLACE"), note("onto itself"))
	t.do(h, "PUT", "/g-copies/1/copy", source(), body("a body"))
	t.copyConditions(h, source)
	return t.err
}

// copyConditions copies under conditions, and where copying is refused.
func (t *talk) copyConditions(h principal, source func(...string) option) {
	etag := `"` + sumOf("hello") + `"`
	t.b.part("conditions")
	for _, c := range [][]string{
		{"X-Amz-Copy-Source-If-Match", etag},
		{"X-Amz-Copy-Source-If-Match", `"x"`},
		{"X-Amz-Copy-Source-If-None-Match", etag},
		{"X-Amz-Copy-Source-If-None-Match", `"x"`},
		{"X-Amz-Copy-Source-If-Modified-Since", "Sat, 01 Jan 2000 00:00:00 GMT"},
		{"X-Amz-Copy-Source-If-Modified-Since", "Fri, 01 Jan 2100 00:00:00 GMT"},
		{"X-Amz-Copy-Source-If-Unmodified-Since", "Sat, 01 Jan 2000 00:00:00 GMT"},
		{"X-Amz-Copy-Source-If-Unmodified-Since", "Fri, 01 Jan 2100 00:00:00 GMT"},
		{"X-Amz-Copy-Source-If-Unmodified-Since", "nonsense"},
		{"X-Amz-Copy-Source-If-Match", ""},
		{"X-Amz-Copy-Source-Range", "bytes=0-1"},
		{"If-None-Match", "*"},
		{"If-Match", `"x"`},
	} {
		t.do(h, "PUT", "/g-copies/1/copy", source(c...))
	}
	t.b.part("refusals")
	t.do(root, "PUT", "/g-copies/1/copy", source())
	t.do(h, "PUT", "/g-copies/2/copy", source())
}

// playDeletions deletes objects, one by one and many at once.
func playDeletions(ctx context.Context, w *world, b *book) error {
	t := &talk{ctx: ctx, w: w, b: b}
	if err := w.bucket(ctx, "g-deletions", "prefix:1", ""); err != nil {
		return err
	}
	l, err := w.acquire(ctx, "g-deletions/1")
	if err != nil {
		return err
	}
	h := l.keys
	seed := func(keys ...string) {
		for _, key := range keys {
			t.must(h, "PUT", "/g-deletions/1/"+key, body("hello"))
		}
	}
	etag := `"` + sumOf("hello") + `"`
	b.part("DeleteObject")
	seed("a", "b", "c", "d", "e", "f")
	t.do(h, "DELETE", "/g-deletions/1/a")
	t.do(h, "DELETE", "/g-deletions/1/a", note("again"))
	t.do(h, "DELETE", "/g-deletions/1/nothing")
	t.do(root, "DELETE", "/g-deletions/1/b")
	t.do(h, "DELETE", "/g-deletions/2/b")
	t.do(h, "DELETE", "/g-deletions/1/b", header("If-Match", `"x"`))
	t.do(h, "DELETE", "/g-deletions/1/b", header("If-Match", ""))
	t.do(h, "DELETE", "/g-deletions/1/b", header("X-Amz-If-Match-Size", "4"))
	t.do(h, "DELETE", "/g-deletions/1/b", header("X-Amz-If-Match-Size", "x"))
	t.do(h, "DELETE", "/g-deletions/1/b", header("X-Amz-If-Match-Last-Modified-Time", "Sat, 01 Jan 2000 00:00:00 GMT"))
	t.do(h, "DELETE", "/g-deletions/1/b", header("If-Match", etag, "X-Amz-If-Match-Size", "5"))
	t.do(h, "DELETE", "/g-deletions/1/c?versionId=null")
	t.do(h, "DELETE", "/g-deletions/1/d?versionId=00000000000000000000000000000000")
	t.do(h, "DELETE", "/g-deletions/1/d?versionId=nonsense")
	t.do(h, "DELETE", "/g-deletions/1/nothing", header("If-Match", etag))
	t.do(root, "GET", "/g-deletions/1/b")

	b.part("DeleteObjects")
	many := func(as principal, document string, more ...string) {
		t.do(as, "POST", "/g-deletions?delete", body(document), header(append([]string{"Content-MD5", md5Of(document)}, more...)...))
	}
	many(h, `<Delete><Object><Key>1/d</Key></Object><Object><Key>1/nothing</Key></Object><Object><Key>2/x</Key></Object></Delete>`)
	many(h, `<Delete><Quiet>true</Quiet><Object><Key>1/e</Key></Object><Object><Key>2/x</Key></Object></Delete>`)
	many(root, `<Delete><Object><Key>1/f</Key></Object></Delete>`)
	many(h, `<Delete><Object><Key>1/f</Key><ETag>"x"</ETag></Object></Delete>`)
	many(h, `<Delete><Object><Key>1/f</Key><Size>4</Size></Object></Delete>`)
	many(h, `<Delete><Object><Key>1/f</Key><VersionId>00000000000000000000000000000000</VersionId></Object></Delete>`)
	many(h, `<Delete><Object><Key>1/f</Key><VersionId>null</VersionId></Object></Delete>`)
	many(h, `<Delete></Delete>`)
	many(h, `<Delete>`)
	many(h, ``)
	many(h, `<Delete>`+strings.Repeat(`<Object><Key>1/x</Key></Object>`, 1001)+`</Delete>`)
	many(anonymous, `<Delete><Object><Key>1/f</Key></Object></Delete>`)
	t.do(h, "POST", "/g-deletions?delete", body(`<Delete><Object><Key>1/f</Key></Object></Delete>`), note("without a digest"))
	t.do(h, "POST", "/g-deletions?delete", body(`<Delete><Object><Key>1/f</Key></Object></Delete>`), header("Content-MD5", md5Of("x")))
	return t.err
}
