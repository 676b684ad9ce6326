//go:build unix

package s3_test

import (
	"crypto/md5"
	"encoding/base64"
	"maps"
	"net/http"
	"strings"
	"testing"

	"github.com/fencegate/fencegate/gateway/s3/credentials"
)

// state returns everything that a request could have changed, including a blob taken from the reserve.
func (w *world) state() string {
	w.t.Helper()
	var s string
	err := w.admin.QueryRow(w.t.Context(), `SELECT concat_ws(';',
		(SELECT string_agg(b::text, ',' ORDER BY name) FROM objects.buckets b),
		(SELECT string_agg(d::text, ',' ORDER BY kind) FROM objects.bucket_documents d),
		(SELECT string_agg(p::text, ',' ORDER BY key) FROM objects.pointers p),
		(SELECT string_agg(v::text, ',' ORDER BY id) FROM objects.versions v),
		(SELECT string_agg(u::text, ',' ORDER BY id) FROM objects.uploads u),
		(SELECT string_agg(b::text, ',' ORDER BY id) FROM objects.blobs b WHERE b.state <> 'pending' OR b.id <> ALL ($1::text[]::uuid[])))`, w.reserve()).Scan(&s)
	if err != nil {
		w.t.Fatal(err)
	}
	return s
}

// A request for something not implemented answers NotImplemented and has no effect: no client may take an object for
// encrypted, locked or moved that is not.
func TestWhatIsNotThereIsNotImplementedAndChangesNothing(t *testing.T) {
	t.Parallel()
	w := setup(t)
	bucket := w.bucket()
	put(t, w.lease("orders/1001", 5), bucket, invoice, "data")
	m := begin(t, w.holder("orders/1001", 5), bucket, "")
	before := w.state()
	root, holder := credentials.Credentials{AccessKeyID: rootAccess, SecretAccessKey: rootSecret}, w.issue("orders/1001", 5)
	check := func(method, path string, header map[string]string, want string) {
		t.Helper()
		for name, creds := range map[string]credentials.Credentials{"root": root, "holder": holder} {
			data, sent := "", maps.Clone(header)
			if method == http.MethodPut || method == http.MethodPost {
				data, sent = documentFor(path), with(sent, "Content-MD5", md5Of(documentFor(path)))
			}
			res, text := w.send(raw{creds: creds, method: method, path: path, body: body(data), size: int64(len(data)), header: sent})
			if res.StatusCode != http.StatusNotImplemented || !strings.Contains(text, "NotImplemented") && method != http.MethodHead {
				t.Errorf("%s %s %v as %s: got %d %.200s, want 501", method, path, header, name, res.StatusCode, text)
			}
		}
		if after := w.state(); after != before {
			t.Fatalf("%s %s %v: something changed%s:\n%s\n%s", method, path, header, want, before, after)
		}
	}
	object, upload := "/orders/"+invoice, "?uploadId="+*m.id
	for _, r := range notThere {
		method, path, _ := strings.Cut(r, " ")
		check(method, strings.Replace(path, "KEY", object, 1), nil, "")
	}
	for name, value := range headersNotThere {
		header := map[string]string{name: value}
		check("PUT", object, header, "")
		check("PUT", object+upload+"&partNumber=1", header, "")
		check("POST", object+"?uploads=", header, "")
		check("PUT", "/another", header, "")
		header["x-amz-copy-source"] = "orders/" + invoice
		check("PUT", "/orders/1001/copy", header, "")
		check("PUT", object+upload+"&partNumber=1", header, "")
		if strings.Contains(name, "encryption") {
			check("GET", object, map[string]string{name: value}, "")
			check("HEAD", object, map[string]string{name: value}, "")
		}
	}
	check("PUT", object, map[string]string{"X-AMZ-ACL": "public-read"}, "")
	if got := get(t, w.root(), bucket, invoice); got != "data" {
		t.Errorf("the object holds %q", got)
	}
}

// documentFor returns a client's document: versitygw parses it before it finds that the operation is not served.
func documentFor(path string) string {
	const ns = ` xmlns="http://s3.amazonaws.com/doc/2006-03-01/"`
	for name, text := range map[string]string{
		"object-lock":       `<ObjectLockConfiguration` + ns + `><ObjectLockEnabled>Enabled</ObjectLockEnabled></ObjectLockConfiguration>`,
		"ownershipControls": `<OwnershipControls` + ns + `><Rule><ObjectOwnership>BucketOwnerEnforced</ObjectOwnership></Rule></OwnershipControls>`,
		"publicAccessBlock": `<PublicAccessBlockConfiguration` + ns + `><BlockPublicAcls>true</BlockPublicAcls></PublicAccessBlockConfiguration>`,
		"acl": `<AccessControlPolicy` + ns + `><Owner><ID>` + rootAccess + `</ID></Owner><AccessControlList><Grant><Grantee xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance"` +
			` xsi:type="Group"><URI>http://acs.amazonaws.com/groups/global/AllUsers</URI></Grantee><Permission>READ</Permission></Grant></AccessControlList></AccessControlPolicy>`,
		"policy":     `{"Version":"2012-10-17","Statement":[{"Effect":"Allow","Principal":"*","Action":"s3:GetObject","Resource":"arn:aws:s3:::orders/*"}]}`,
		"tagging":    `<Tagging` + ns + `><TagSet><Tag><Key>a</Key><Value>b</Value></Tag></TagSet></Tagging>`,
		"website":    `<WebsiteConfiguration` + ns + `><IndexDocument><Suffix>index.html</Suffix></IndexDocument></WebsiteConfiguration>`,
		"legal-hold": `<LegalHold` + ns + `><Status>ON</Status></LegalHold>`,
		"retention":  `<Retention` + ns + `><Mode>GOVERNANCE</Mode><RetainUntilDate>2036-01-01T00:00:00Z</RetainUntilDate></Retention>`,
		"restore":    `<RestoreRequest` + ns + `><Days>1</Days></RestoreRequest>`,
		"select": `<SelectObjectContentRequest` + ns + `><Expression>SELECT * FROM S3Object</Expression><ExpressionType>SQL</ExpressionType>` +
			`<InputSerialization><CSV/></InputSerialization><OutputSerialization><CSV/></OutputSerialization></SelectObjectContentRequest>`,
	} {
		if strings.Contains(path, "?"+name+"=") {
			return text
		}
	}
	return "x"
}

func md5Of(s string) string {
	sum := md5.Sum([]byte(s))
	return base64.StdEncoding.EncodeToString(sum[:])
}

func with(header map[string]string, name, value string) map[string]string {
	all := map[string]string{name: value}
	maps.Copy(all, header)
	return all
}

// notThere are operations that are not implemented, by method and path; KEY is an object.
var notThere = strings.Split(strings.TrimSpace(`
PUT /orders?acl=
PUT /orders?accelerate=
PUT /orders?analytics=&id=1
PUT /orders?encryption=
PUT /orders?intelligent-tiering=&id=1
PUT /orders?inventory=&id=1
PUT /orders?lifecycle=
PUT /orders?logging=
PUT /orders?metrics=&id=1
PUT /orders?notification=
PUT /orders?object-lock=
PUT /orders?ownershipControls=
PUT /orders?policy=
PUT /orders?publicAccessBlock=
PUT /orders?replication=
PUT /orders?requestPayment=
PUT /orders?website=
PUT /orders?metadataTable=
PUT /orders?abac=
PUT /orders?something=
GET /orders?accelerate=
GET /orders?analytics=&id=1
GET /orders?intelligent-tiering=&id=1
GET /orders?inventory=&id=1
GET /orders?logging=
GET /orders?metadataTable=
GET /orders?metrics=&id=1
GET /orders?notification=
GET /orders?requestPayment=
GET /orders?session=
DELETE /orders?analytics=&id=1
DELETE /orders?intelligent-tiering=&id=1
DELETE /orders?inventory=&id=1
DELETE /orders?lifecycle=
DELETE /orders?metadataTable=
DELETE /orders?metrics=&id=1
DELETE /orders?replication=
DELETE /orders?website=
DELETE /orders?something=
POST /orders?metadataTable=
PUT KEY?acl=
PUT KEY?encryption=
PUT KEY?renameObject=
PUT KEY?X-Amz-Acl=public-read
GET KEY?torrent=
DELETE KEY?acl=
DELETE KEY?legal-hold=
DELETE KEY?retention=
DELETE KEY?torrent=
POST KEY?restore=
POST KEY?select=&select-type=2
POST KEY?something=
`), "\n")

var headersNotThere = map[string]string{
	"x-amz-server-side-encryption":                                "AES256",
	"x-amz-server-side-encryption-customer-algorithm":             "AES256",
	"x-amz-server-side-encryption-customer-key":                   "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=",
	"x-amz-server-side-encryption-aws-kms-key-id":                 "key",
	"x-amz-server-side-encryption-bucket-key-enabled":             "true",
	"x-amz-server-side-encryption-context":                        "e30=",
	"x-amz-copy-source-server-side-encryption-customer-algorithm": "AES256",
	"x-amz-acl":                           "public-read",
	"x-amz-grant-read":                    "id=1",
	"x-amz-grant-write":                   "id=1",
	"x-amz-grant-read-acp":                "id=1",
	"x-amz-grant-write-acp":               "id=1",
	"x-amz-grant-full-control":            "id=1",
	"x-amz-storage-class":                 "GLACIER",
	"x-amz-object-lock-mode":              "COMPLIANCE",
	"x-amz-object-lock-legal-hold":        "ON",
	"x-amz-object-lock-retain-until-date": "2030-01-01T00:00:00Z",
	"x-amz-bucket-object-lock-enabled":    "true",
	"x-amz-object-ownership":              "ObjectWriter",
	"x-amz-website-redirect-location":     "/elsewhere",
	"x-amz-write-offset-bytes":            "4",
	"x-amz-rename-source":                 "/orders/1001/other",
}

func TestAnotherOwnerIsNotTheOneExpected(t *testing.T) {
	t.Parallel()
	w := setup(t)
	bucket := w.bucket()
	put(t, w.lease("orders/1001", 5), bucket, invoice, "data")
	for owner, want := range map[string]int{"111122223333": 403, rootAccess: 200} {
		for _, method := range []string{"GET", "PUT"} {
			res, text := w.send(raw{creds: w.issue("orders/1001", 5), method: method, path: "/orders/" + invoice, body: body(""), header: map[string]string{"x-amz-expected-bucket-owner": owner}})
			if res.StatusCode != want {
				t.Errorf("%s expecting %s: got %d %s, want %d", method, owner, res.StatusCode, text, want)
			}
		}
	}
}
