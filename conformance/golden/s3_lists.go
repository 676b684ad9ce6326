package main

import (
	"context"
	"fmt"
	"strings"
)

// playLists lists buckets and objects.
func playLists(ctx context.Context, w *world, b *book) error {
	t := &talk{ctx: ctx, w: w, b: b}
	for _, name := range []string{"g-lists", "g-lists-empty"} {
		if err := w.bucket(ctx, name, "none", ""); err != nil {
			return err
		}
	}
	for _, key := range []string{"a", "b/1", "b/2", "b/c/3", "d", "e%20f", "%C3%A4", "g%26%3C", "z%2B", "b//x"} {
		t.must(root, "PUT", "/g-lists/"+key, body("hello"))
	}
	b.part("ListBuckets")
	for _, query := range []string{"?prefix=g-lists", "?prefix=g-lists&max-buckets=1", "?prefix=g-nothing", "?max-buckets=0", "?max-buckets=x", "?max-buckets=10001", "?prefix=g-lists&continuation-token=g-lists"} {
		t.do(root, "GET", "/"+query)
	}
	t.do(sessionOf("g-lists/1", 1, later()), "GET", "/?prefix=g-lists")
	for _, version := range []string{"", "list-type=2&"} {
		b.part("ListObjects " + version)
		for _, query := range []string{
			"", "prefix=b/", "prefix=b/&delimiter=/", "delimiter=/", "delimiter=b", "max-keys=2", "max-keys=0", "max-keys=-1", "max-keys=x", "max-keys=2000", "max-keys=99999999999999999999",
			"encoding-type=url", "encoding-type=nonsense", "encoding-type=url&delimiter=/&prefix=b/", "marker=b/1", "start-after=b/1", "marker=b/1&delimiter=/", "start-after=b/1&delimiter=/",
			"prefix=nothing", "fetch-owner=true", "continuation-token=", "continuation-token=nonsense", "prefix=%00", "prefix=%FF", "delimiter=%00", "max-keys=2&delimiter=/", "optional=1",
		} {
			t.do(root, "GET", "/g-lists?"+version+query)
		}
		t.do(root, "GET", "/g-lists-empty?"+version)
		t.do(root, "GET", "/g-nowhere?"+version)
		t.do(root, "GET", "/g-lists?"+version, header("X-Amz-Optional-Object-Attributes", "RestoreStatus"))
		t.do(anonymous, "GET", "/g-lists?"+version)
	}
	b.part("page by page")
	token := ""
	for {
		query := "/g-lists?list-type=2&max-keys=3&delimiter=/"
		if token != "" {
			query += "&continuation-token=" + strings.NewReplacer("+", "%2B", "/", "%2F", "=", "%3D").Replace(token)
		}
		if token = t.do(root, "GET", query).element("NextContinuationToken"); token == "" {
			break
		}
	}
	b.part("ListObjectVersions where none are kept")
	for _, query := range []string{"", "&prefix=b/", "&delimiter=/", "&max-keys=1", "&key-marker=b/1", "&version-id-marker=x", "&key-marker=b/1&version-id-marker=nonsense", "&encoding-type=url"} {
		t.do(root, "GET", "/g-lists?versions"+query)
	}
	t.buckets()
	return t.err
}

// buckets inspects, creates and removes buckets.
func (t *talk) buckets() {
	t.b.part("HeadBucket, GetBucketLocation, GetBucketVersioning")
	for _, name := range []string{"g-lists", "g-nowhere", "G", "a..b", "xn--x", "192.168.0.1"} {
		t.do(root, "HEAD", "/"+name)
		t.do(root, "GET", "/"+name+"?location")
		t.do(root, "GET", "/"+name+"?versioning")
	}
	t.b.part("CreateBucket, DeleteBucket")
	t.do(root, "PUT", "/g-lists-new")
	t.do(root, "PUT", "/g-lists-new", note("again"))
	t.do(root, "PUT", "/g-lists-new2", body(`<CreateBucketConfiguration xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><LocationConstraint>eu-west-1</LocationConstraint></CreateBucketConfiguration>`))
	t.do(root, "PUT", "/g-lists-new3", body(`<CreateBucketConfiguration xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><LocationConstraint>us-east-1</LocationConstraint></CreateBucketConfiguration>`))
	t.do(root, "PUT", "/g-lists-new4", body(`<nonsense`))
	t.do(root, "PUT", "/g-lists-new5", header("X-Amz-Object-Ownership", "BucketOwnerEnforced"))
	for _, name := range []string{"G", "ab", "a..b", "192.168.0.1", "a_b", strings.Repeat("a", 64)} {
		t.do(root, "PUT", "/"+name)
	}
	t.do(sessionOf("g-lists/1", 1, later()), "PUT", "/g-lists-new6")
	t.do(sessionOf("g-lists/1", 1, later()), "PUT", "/g-lists")
	t.do(anonymous, "PUT", "/g-lists-new6")
	t.do(sessionOf("g-lists/1", 1, later()), "DELETE", "/g-lists-new")
	t.do(anonymous, "DELETE", "/g-lists-new")
	t.do(root, "DELETE", "/g-lists-new")
	t.do(root, "DELETE", "/g-lists-new", note("again"))
	t.do(root, "DELETE", "/g-lists")
}

// playMultipart uploads in parts.
func playMultipart(ctx context.Context, w *world, b *book) error {
	t := &talk{ctx: ctx, w: w, b: b}
	if err := w.bucket(ctx, "g-multipart", "prefix:1", ""); err != nil {
		return err
	}
	l, err := w.acquire(ctx, "g-multipart/1")
	if err != nil {
		return err
	}
	h := l.keys
	const object = "/g-multipart/1/object"
	b.part("an upload")
	id := t.do(h, "POST", object+"?uploads", header("Content-Type", "text/plain", "X-Amz-Meta-By", "golden", "X-Amz-Tagging", "a=1")).element("UploadId")
	upload := "?uploadId=" + id
	big := strings.Repeat("0123456789abcdef", 5<<16)
	t.do(h, "PUT", object+upload+"&partNumber=1", body(big))
	t.do(h, "PUT", object+upload+"&partNumber=2", body("the end"))
	t.do(h, "PUT", object+upload+"&partNumber=2", body("the end"), header("Content-MD5", md5Of("x")))
	t.do(h, "PUT", object+upload+"&partNumber=3", header("X-Amz-Copy-Source", "g-multipart/1/nothing"))
	for _, number := range []string{"0", "10001", "x", "-1", ""} {
		t.do(h, "PUT", object+upload+"&partNumber="+number, body("x"))
	}
	for _, query := range []string{"", "&max-parts=1", "&part-number-marker=1", "&max-parts=x", "&encoding-type=url"} {
		t.do(root, "GET", object+upload+query)
	}
	t.do(h, "GET", object+upload)
	for _, query := range []string{"", "&prefix=1/", "&delimiter=/", "&max-uploads=1", "&max-uploads=x", "&key-marker=1/a", "&key-marker=1/a&upload-id-marker=" + id, "&encoding-type=url"} {
		t.do(root, "GET", "/g-multipart?uploads"+query)
	}
	b.part("its completion")
	complete := func(as principal, parts ...string) { t.complete(as, object+upload, parts...) }
	one, two := sumOf(big), sumOf("the end")
	complete(h)
	complete(h, "2", two, "1", one)
	complete(h, "1", two)
	complete(h, "1", one, "5", two)
	complete(h, "2", two, "3", two)
	complete(root, "1", one, "2", two)
	t.do(h, "POST", object+upload, body("<nonsense"))
	t.do(h, "POST", object+upload, body("<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>"+one+"</ETag></Part></CompleteMultipartUpload>"), header("If-Match", `"x"`))
	complete(h, "1", one, "2", two)
	complete(h, "1", one, "2", two)
	t.do(root, "HEAD", object)
	t.do(root, "HEAD", object+"?partNumber=2")
	t.do(root, "GET", object+"?partNumber=2")
	t.do(root, "GET", object+"?attributes", header("X-Amz-Object-Attributes", "ETag,Checksum,ObjectParts,StorageClass,ObjectSize"))
	t.do(root, "GET", object, header("Range", "bytes=5242875-5242884"))
	t.do(root, "GET", object+"?tagging")
	t.do(root, "GET", object+upload)

	t.otherUploads(h, object)
	return t.err
}

// otherUploads are aborted, have checksums, or copy their parts.
func (t *talk) otherUploads(h principal, object string) {
	t.b.part("too small, without a grant, given up")
	id := t.must(h, "POST", object+"?uploads").element("UploadId")
	upload := "?uploadId=" + id
	t.must(h, "PUT", object+upload+"&partNumber=1", body("small"))
	t.must(h, "PUT", object+upload+"&partNumber=2", body("small"))
	t.complete(h, object+upload, "1", sumOf("small"), "2", sumOf("small"))
	t.do(root, "PUT", object+upload+"&partNumber=1", body("x"))
	t.do(root, "DELETE", object+upload)
	t.do(h, "DELETE", object+upload)
	t.do(h, "DELETE", object+upload, note("again"))
	t.do(h, "PUT", object+upload+"&partNumber=1", body("x"))
	t.complete(h, object+upload, "1", sumOf("small"))
	t.do(root, "POST", object+"?uploads")
	t.do(h, "POST", "/g-multipart/2/object?uploads")
	t.do(h, "PUT", object+"?uploadId=nonsense&partNumber=1", body("x"))
	t.do(h, "PUT", object+"?partNumber=1", body("x"))
	t.do(h, "PUT", object+"?uploadId=x", body("x"))

	t.b.part("checksums and copied parts")
	id = t.do(h, "POST", object+"?uploads", header("X-Amz-Checksum-Algorithm", "SHA256")).element("UploadId")
	upload = "?uploadId=" + id
	t.do(h, "PUT", object+upload+"&partNumber=1", body("hello"), header("X-Amz-Checksum-Sha256", helloSHA256))
	t.do(h, "PUT", object+upload+"&partNumber=1", body("jello"), header("X-Amz-Checksum-Sha256", helloSHA256))
	t.do(h, "PUT", object+upload+"&partNumber=1", body("hello"), header("X-Amz-Checksum-Crc32", "NhCmhg=="))
	t.do(root, "GET", object+upload)
	document := `<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>"` + sumOf("hello") + `"</ETag><ChecksumSHA256>` + helloSHA256 + `</ChecksumSHA256></Part></CompleteMultipartUpload>`
	t.do(h, "POST", object+upload, body(document))
	t.do(root, "HEAD", object, header("X-Amz-Checksum-Mode", "ENABLED"))
	t.do(h, "POST", object+"?uploads", header("X-Amz-Checksum-Algorithm", "nonsense"))
	t.do(h, "POST", object+"?uploads", header("X-Amz-Checksum-Algorithm", "CRC32", "X-Amz-Checksum-Type", "FULL_OBJECT"))
	id = t.must(h, "POST", "/g-multipart/1/copied?uploads").element("UploadId")
	upload = "?uploadId=" + id
	for _, c := range [][]string{{}, {"X-Amz-Copy-Source-Range", "bytes=1-3"}, {"X-Amz-Copy-Source-Range", "bytes=1-99"}, {"X-Amz-Copy-Source-Range", "nonsense"}, {"X-Amz-Copy-Source-If-Match", `"x"`}} {
		t.do(h, "PUT", "/g-multipart/1/copied"+upload+"&partNumber=1", header(append([]string{"X-Amz-Copy-Source", "g-multipart/1/object"}, c...)...))
	}
	t.do(root, "PUT", "/g-multipart/1/copied"+upload+"&partNumber=1", header("X-Amz-Copy-Source", "g-multipart/1/object"))
}

// complete completes an upload of parts: number, ETag, number, ETag …
func (t *talk) complete(as principal, target string, parts ...string) {
	var document strings.Builder
	for i := 0; i+1 < len(parts); i += 2 {
		fmt.Fprintf(&document, `<Part><PartNumber>%s</PartNumber><ETag>"%s"</ETag></Part>`, parts[i], parts[i+1])
	}
	t.do(as, "POST", target, body("<CompleteMultipartUpload>"+document.String()+"</CompleteMultipartUpload>"))
}

// playVersions keeps versions.
func playVersions(ctx context.Context, w *world, b *book) error {
	t := &talk{ctx: ctx, w: w, b: b}
	if err := w.bucket(ctx, "g-versions", "prefix:1", ""); err != nil {
		return err
	}
	l, err := w.acquire(ctx, "g-versions/1")
	if err != nil {
		return err
	}
	h := l.keys
	const object = "/g-versions/1/object"
	b.part("versioning")
	versioning := func(as principal, status string) {
		t.do(as, "PUT", "/g-versions?versioning", body(`<VersioningConfiguration xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Status>`+status+`</Status></VersioningConfiguration>`))
	}
	t.must(h, "PUT", object, body("before"))
	t.do(root, "GET", "/g-versions?versioning")
	versioning(h, "Enabled")
	versioning(root, "nonsense")
	versioning(root, "Enabled")
	versioning(root, "Suspended")
	t.do(root, "GET", "/g-versions?versioning")
	b.part("versions of an object")
	first := t.do(h, "PUT", object, body("first")).header.Get("X-Amz-Version-Id")
	second := t.do(h, "PUT", object, body("second")).header.Get("X-Amz-Version-Id")
	t.do(root, "GET", object+"?versionId="+first)
	t.do(root, "HEAD", object+"?versionId="+first)
	t.do(root, "GET", object)
	t.do(root, "GET", object+"?versionId=null")
	t.do(h, "PUT", object+"?versionId="+first, body("x"))
	tags := `<Tagging><TagSet><Tag><Key>c</Key><Value>3</Value></Tag></TagSet></Tagging>`
	t.do(h, "PUT", object+"?tagging&versionId="+first, body(tags), header("Content-MD5", md5Of(tags)))
	t.do(root, "GET", object+"?tagging&versionId="+first)
	t.do(root, "GET", object+"?attributes&versionId="+first, header("X-Amz-Object-Attributes", "ObjectSize"))
	marker := t.do(h, "DELETE", object).header.Get("X-Amz-Version-Id")
	t.do(root, "GET", object)
	t.do(root, "HEAD", object)
	t.do(root, "GET", object+"?versionId="+marker)
	t.do(root, "GET", object+"?tagging")
	for _, query := range []string{"", "&max-keys=1", "&prefix=1/o", "&key-marker=1/object&version-id-marker=" + second, "&delimiter=/"} {
		t.do(root, "GET", "/g-versions?versions"+query)
	}
	b.part("restoring and removing")
	t.do(h, "PUT", object, header("X-Amz-Copy-Source", "g-versions/1/object?versionId="+first))
	t.do(root, "GET", object)
	t.do(root, "DELETE", object+"?versionId="+first)
	t.do(h, "DELETE", object+"?versionId="+second)
	t.do(h, "DELETE", object+"?versionId="+second, note("again"))
	t.do(h, "DELETE", object+"?versionId="+marker)
	t.do(root, "GET", object+"?versionId="+second)
	t.do(h, "DELETE", object+"?versionId="+first)
	many := `<Delete><Object><Key>1/object</Key></Object><Object><Key>1/object</Key><VersionId>null</VersionId></Object></Delete>`
	t.do(h, "POST", "/g-versions?delete", body(many), header("Content-MD5", md5Of(many)))
	t.do(root, "GET", "/g-versions?versions")
	t.do(root, "DELETE", "/g-versions")
	return t.err
}
