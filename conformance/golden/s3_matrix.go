package main

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"time"
)

// subresources are all that S3 or the library behind the port knows, and some unknown ones.
var subresources = strings.Fields(`abac accelerate acl analytics analytics=&id=1 append attributes cors delete encryption intelligent-tiering intelligent-tiering=&id=1
	inventory inventory=&id=1 legal-hold lifecycle list-type=2 location logging metadataConfiguration metadataInventoryTable metadataJournalTable metadataTable
	metrics metrics=&id=1 notification object-lock ownershipControls partNumber=1 policy policyStatus publicAccessBlock renameObject replication requestPayment
	restore retention select select=&select-type=2 session something tagging torrent uploadId=x uploads versionId=null versioning versions website x-id=Something
	POLICY Tagging policy=x tagging=&policy policy=&tagging`)

// wants are the principals of one matrix, with the lease that is valid for the resource.
func wants(current, other, stale, ended principal) []principal {
	named := func(p principal, name string) principal {
		p.name = name
		return p
	}
	return []principal{
		root,
		named(current, "lease"), named(other, "other lease"), named(stale, "stale lease"), named(ended, "expired lease"),
		anonymous,
		named(root.forged(), "forged root"), named(current.forged(), "forged lease"),
	}
}

// looks describes the sub-resources of the bucket and its object.
func (t *talk) looks() string {
	at := t.quiet(root, "HEAD", "/g-matrix/object")
	tags, docs := t.quiet(root, "GET", "/g-matrix/object?tagging"), ""
	for _, sub := range []string{"tagging", "cors", "ownershipControls", "publicAccessBlock", "versioning", "policy"} {
		docs += t.quiet(root, "GET", "/g-matrix?"+sub).element("Code") + ";"
	}
	return fmt.Sprintf("bucket %d, object %d %s by %q, tags %q, documents %s", t.quiet(root, "HEAD", "/g-matrix").status, at.status, at.header.Get("Etag"), at.header.Get("X-Amz-Meta-By"), tags.element("Key"), docs)
}

// playSubresources requests each sub-resource with each method at each level, and checks whether the bucket and its
// object have changed.
func playSubresources(ctx context.Context, w *world, b *book) error {
	t := &talk{ctx: ctx, w: w, b: b}
	if err := w.bucket(ctx, "g-matrix", "none", ""); err != nil {
		return err
	}
	l, err := w.acquire(ctx, "g-matrix")
	if err != nil {
		return err
	}
	lease := l.keys
	lease.name = "lease"
	principals := []principal{root, lease, anonymous, lease.forged()}
	before := t.restored()
	b.linef("At first: %s", before)
	for _, level := range []string{"/", "/g-matrix", "/g-matrix/object"} {
		for _, method := range []string{"GET", "HEAD", "PUT", "POST", "DELETE"} {
			b.part(method + " " + level)
			for _, sub := range subresources {
				b.linef("%-28s %s", "?"+sub, t.subresource(principals, method, level, sub))
				if t.err != nil {
					return t.err
				}
				if method == "GET" || method == "HEAD" {
					continue
				}
				if after := t.looks(); after != before {
					b.linef("%28s changed: %s", "", after)
					before = t.restored()
				}
			}
		}
	}
	return t.err
}

// subresource returns the answers to each principal.
func (t *talk) subresource(principals []principal, method, level, sub string) string {
	name, _, _ := strings.Cut(sub, "=")
	text := ""
	if method == "PUT" || method == "POST" {
		text = documentOf(name)
	}
	var cells []string
	for _, p := range principals {
		r := t.quiet(p, method, level+"?"+sub, body(text), header("Content-MD5", md5Of(text)))
		cells = append(cells, p.name+": "+r.brief())
	}
	return strings.Join(cells, ", ")
}

// restored restores the bucket and its object, and describes them.
func (t *talk) restored() string {
	for _, undo := range []string{"cors", "tagging"} {
		t.quiet(root, "DELETE", "/g-matrix?"+undo)
	}
	t.must(root, "PUT", "/g-matrix", note("again"))
	t.must(root, "PUT", "/g-matrix/object", body("hello"), header("X-Amz-Meta-By", "golden"))
	return t.looks()
}

// headersNotThere are headers for unsupported features, and some that have no effect.
var headersNotThere = [][2]string{
	{"X-Amz-Server-Side-Encryption", "AES256"},
	{"X-Amz-Server-Side-Encryption-Customer-Algorithm", "AES256"},
	{"X-Amz-Server-Side-Encryption-Customer-Key", "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE="},
	{"X-Amz-Server-Side-Encryption-Aws-Kms-Key-Id", "key"},
	{"X-Amz-Server-Side-Encryption-Bucket-Key-Enabled", "true"},
	{"X-Amz-Server-Side-Encryption-Context", "e30="},
	{"X-Amz-Copy-Source-Server-Side-Encryption-Customer-Algorithm", "AES256"},
	{"X-Amz-Acl", "public-read"},
	{"X-Amz-Acl", "private"},
	{"X-Amz-Grant-Read", "id=1"},
	{"X-Amz-Grant-Full-Control", "id=1"},
	{"X-Amz-Storage-Class", "GLACIER"},
	{"X-Amz-Storage-Class", "STANDARD"},
	{"X-Amz-Object-Lock-Mode", "COMPLIANCE"},
	{"X-Amz-Object-Lock-Legal-Hold", "ON"},
	{"X-Amz-Object-Lock-Retain-Until-Date", "2030-01-01T00:00:00Z"},
	{"X-Amz-Bucket-Object-Lock-Enabled", "true"},
	{"X-Amz-Bucket-Object-Lock-Enabled", "false"},
	{"X-Amz-Object-Ownership", "ObjectWriter"},
	{"X-Amz-Website-Redirect-Location", "/elsewhere"},
	{"X-Amz-Write-Offset-Bytes", "4"},
	{"X-Amz-Rename-Source", "/g-unsupported/other"},
	{"X-Amz-If-Match-Initiated-Time", "Sat, 01 Jan 2000 00:00:00 GMT"},
	{"X-Amz-If-Match-Size", "5"},
	{"X-Amz-Copy-Source-Range", "bytes=0-1"},
	{"X-Amz-Expected-Bucket-Owner", "somebody"},
	{"X-Amz-Source-Expected-Bucket-Owner", "somebody"},
	{"X-Amz-Mfa", "1 2"},
	{"X-Amz-Bypass-Governance-Retention", "true"},
	{"X-Amz-Request-Payer", "requester"},
	{"X-Amz-Something", "1"},
}

// playUnsupported sends headers for unsupported features with each operation that could overlook them.
func playUnsupported(ctx context.Context, w *world, b *book) error {
	t := &talk{ctx: ctx, w: w, b: b}
	if err := w.bucket(ctx, "g-unsupported", "none", ""); err != nil {
		return err
	}
	t.must(root, "PUT", "/g-unsupported/object", body("hello"))
	upload := t.must(root, "POST", "/g-unsupported/object?uploads").element("UploadId")
	const object = "/g-unsupported/object"
	for _, h := range headersNotThere {
		b.part(h[0] + ": " + h[1])
		for _, c := range []struct {
			what, method, target string
			copies               bool
		}{
			{"GetObject", "GET", object, false},
			{"HeadObject", "HEAD", object, false},
			{"PutObject", "PUT", object, false},
			{"CopyObject", "PUT", object + "-copy", true},
			{"CreateMultipartUpload", "POST", object + "?uploads", false},
			{"UploadPart", "PUT", object + "?partNumber=1&uploadId=" + upload, false},
			{"UploadPartCopy", "PUT", object + "?partNumber=1&uploadId=" + upload, true},
			{"DeleteObject", "DELETE", object + "-nothing", false},
			{"ListObjectsV2", "GET", "/g-unsupported?list-type=2", false},
			{"CreateBucket", "PUT", "/g-unsupported", false},
			{"GetBucketLocation", "GET", "/g-unsupported?location", false},
		} {
			options := []option{header(h[0], h[1])}
			if c.copies {
				options = append(options, header("X-Amz-Copy-Source", "g-unsupported/object"))
			} else if c.method == "PUT" && c.what != "CreateBucket" {
				options = append(options, body("hello"))
			}
			r := t.quiet(root, c.method, c.target, options...)
			b.linef("%-24s %s", c.what, r.brief())
			if c.what == "PutObject" && r.status == http.StatusNotImplemented {
				b.lines("  ", r.element("Message"))
			}
		}
	}
	return t.err
}

// playPrincipals lists which principal may do which operation.
// Each cell that could change buckets and objects gets new ones.
func playPrincipals(ctx context.Context, w *world, b *book) error {
	t := &talk{ctx: ctx, w: w, b: b}
	for name, rule := range map[string]string{"g-principals": "prefix:1", "g-principals-none": "none"} {
		if err := w.bucket(ctx, name, rule, "all"); err != nil {
			return err
		}
	}
	stale, current, err := w.pair(ctx, "g-principals/1")
	if err != nil {
		return err
	}
	other, err := w.acquire(ctx, "g-principals/2")
	if err != nil {
		return err
	}
	principals := wants(current.keys, other.keys, stale.keys, sessionOf("g-principals/1", 2, time.Now().Add(-time.Hour)))
	for _, rule := range []struct {
		bucket string
		writer principal
	}{{"g-principals", current.keys}, {"g-principals-none", root}} {
		b.part(rule.bucket)
		for _, o := range operations {
			var cells []string
			for _, p := range principals {
				cells = append(cells, p.name+": "+o.as(t, p, rule.writer, "/"+rule.bucket).brief())
			}
			b.linef("%-28s %s", o.name, strings.Join(cells, ", "))
		}
	}
	return t.err
}

// operation is one cell's request. KEY is an existing object, VERSION its version, UPLOAD an upload of it.
type operation struct {
	name, method, target string
	sub                  string // the sub-resource whose document is sent
	header               []string
}

var operations = []operation{
	{name: "ListBuckets", method: "GET", target: "/?prefix=g-principals"},
	{name: "HeadBucket", method: "HEAD", target: "BUCKET"},
	{name: "GetBucketLocation", method: "GET", target: "BUCKET?location"},
	{name: "ListObjects", method: "GET", target: "BUCKET"},
	{name: "ListObjectsV2", method: "GET", target: "BUCKET?list-type=2"},
	{name: "ListObjectVersions", method: "GET", target: "BUCKET?versions"},
	{name: "ListMultipartUploads", method: "GET", target: "BUCKET?uploads"},
	{name: "CreateBucket, there", method: "PUT", target: "BUCKET"},
	{name: "CreateBucket, invalid", method: "PUT", target: "/G"},
	{name: "DeleteBucket, not empty", method: "DELETE", target: "BUCKET"},
	{name: "GetBucketVersioning", method: "GET", target: "BUCKET?versioning"},
	{name: "PutBucketVersioning", method: "PUT", target: "BUCKET?versioning", sub: "versioning"},
	{name: "GetBucketCors", method: "GET", target: "BUCKET?cors"},
	{name: "PutBucketCors", method: "PUT", target: "BUCKET?cors", sub: "cors"},
	{name: "DeleteBucketCors", method: "DELETE", target: "BUCKET?cors"},
	{name: "GetBucketTagging", method: "GET", target: "BUCKET?tagging"},
	{name: "PutBucketTagging", method: "PUT", target: "BUCKET?tagging", sub: "tagging"},
	{name: "DeleteBucketTagging", method: "DELETE", target: "BUCKET?tagging"},
	{name: "GetBucketOwnershipControls", method: "GET", target: "BUCKET?ownershipControls"},
	{name: "PutBucketOwnershipControls", method: "PUT", target: "BUCKET?ownershipControls", sub: "ownershipControls"},
	{name: "GetPublicAccessBlock", method: "GET", target: "BUCKET?publicAccessBlock"},
	{name: "PutPublicAccessBlock", method: "PUT", target: "BUCKET?publicAccessBlock", sub: "publicAccessBlock"},
	{name: "DeletePublicAccessBlock", method: "DELETE", target: "BUCKET?publicAccessBlock"},
	{name: "GetBucketAcl", method: "GET", target: "BUCKET?acl"},
	{name: "PutBucketAcl", method: "PUT", target: "BUCKET?acl", sub: "acl"},
	{name: "GetBucketPolicy", method: "GET", target: "BUCKET?policy"},
	{name: "DeleteBucketPolicy", method: "DELETE", target: "BUCKET?policy"},
	{name: "GetObject", method: "GET", target: "KEY"},
	{name: "HeadObject", method: "HEAD", target: "KEY"},
	{name: "GetObject, version", method: "GET", target: "KEY?versionId=VERSION"},
	{name: "GetObjectAttributes", method: "GET", target: "KEY?attributes", header: []string{"X-Amz-Object-Attributes", "ETag"}},
	{name: "GetObjectTagging", method: "GET", target: "KEY?tagging"},
	{name: "GetObjectAcl", method: "GET", target: "KEY?acl"},
	{name: "ListParts", method: "GET", target: "KEY?uploadId=UPLOAD"},
	{name: "PutObject", method: "PUT", target: "KEY"},
	{name: "PutObject, staged", method: "PUT", target: "KEY", header: []string{"Fencing-Stage", "true"}},
	{name: "CopyObject", method: "PUT", target: "KEY", header: []string{"X-Amz-Copy-Source", "SOURCE"}},
	{name: "CopyObject, restoring", method: "PUT", target: "KEY", header: []string{"X-Amz-Copy-Source", "ITSELF?versionId=VERSION"}},
	{name: "PutObjectTagging", method: "PUT", target: "KEY?tagging", sub: "tagging"},
	{name: "DeleteObjectTagging", method: "DELETE", target: "KEY?tagging"},
	{name: "PutObjectAcl", method: "PUT", target: "KEY?acl", sub: "acl"},
	{name: "PutObjectRetention", method: "PUT", target: "KEY?retention", sub: "retention"},
	{name: "CreateMultipartUpload", method: "POST", target: "KEY?uploads"},
	{name: "UploadPart", method: "PUT", target: "KEY?uploadId=UPLOAD&partNumber=1"},
	{name: "UploadPartCopy", method: "PUT", target: "KEY?uploadId=UPLOAD&partNumber=1", header: []string{"X-Amz-Copy-Source", "SOURCE"}},
	{name: "CompleteMultipartUpload", method: "POST", target: "KEY?uploadId=UPLOAD", sub: "complete"},
	{name: "AbortMultipartUpload", method: "DELETE", target: "KEY?uploadId=UPLOAD"},
	{name: "DeleteObjects", method: "POST", target: "BUCKET?delete", sub: "delete one"},
	{name: "DeleteObject", method: "DELETE", target: "KEY"},
	{name: "DeleteObject, version", method: "DELETE", target: "KEY?versionId=VERSION"},
}

// as does the operation as p, on an object that writer has just created.
func (o operation) as(t *talk, p, writer principal, bucket string) *reply {
	const key = "/1/object"
	version := t.must(writer, "PUT", bucket+key, body("hello")).header.Get("X-Amz-Version-Id")
	upload := t.must(writer, "POST", bucket+key+"?uploads").element("UploadId")
	t.must(writer, "PUT", bucket+key+"?partNumber=1&uploadId="+upload, body("hello"))
	t.must(writer, "PUT", bucket+"/1/source", body("hello"))
	names := strings.NewReplacer("BUCKET", bucket, "KEY", bucket+key, "VERSION", version, "UPLOAD", upload, "ITSELF", strings.TrimPrefix(bucket+key, "/"), "SOURCE", strings.TrimPrefix(bucket, "/")+"/1/source")
	var options []option
	for i := 0; i+1 < len(o.header); i += 2 {
		options = append(options, header(o.header[i], names.Replace(o.header[i+1])))
	}
	text := documentOf(o.sub)
	switch o.sub {
	case "complete":
		text = `<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>"` + sumOf("hello") + `"</ETag></Part></CompleteMultipartUpload>`
	case "delete one":
		text = `<Delete><Object><Key>1/object</Key></Object></Delete>`
	case "":
		if o.method == "PUT" && len(o.header) == 0 && strings.HasPrefix(o.target, "KEY") {
			text = "hello"
		}
	}
	if text != "" {
		options = append(options, body(text), header("Content-MD5", md5Of(text)))
	}
	r := t.quiet(p, o.method, names.Replace(o.target), options...)
	if o.sub == "delete one" && r.status == http.StatusOK {
		r.body = "<Code>" + r.element("Code") + "</Code>"
	}
	t.quiet(writer, "DELETE", bucket+key+"?uploadId="+upload)
	return r
}
