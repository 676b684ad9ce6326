//go:build unix

package s3_test

import (
	"encoding/xml"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	awss3 "github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	"github.com/fencegate/fencegate/gateway/s3/credentials"
)

func rootCredentials() credentials.Credentials {
	return credentials.Credentials{AccessKeyID: rootAccess, SecretAccessKey: rootSecret}
}

// ask sends a request with a document, and returns the status, the code of an
// error, and the answer.
func (w *world) ask(creds credentials.Credentials, method, path, document string, header map[string]string) (status int, code, text string) {
	w.t.Helper()
	sent := header
	if document != "" {
		sent = with(header, "Content-MD5", md5Of(document))
	}
	res, text := w.send(raw{creds: creds, method: method, path: path, body: body(document), size: int64(len(document)), header: sent})
	var e struct{ Code string }
	if res.StatusCode >= 400 {
		_ = xml.Unmarshal([]byte(text), &e)
	}
	return res.StatusCode, e.Code, text
}

// documents are a bucket's documents by parameter: one that is accepted, a part of what is returned, and the error if
// there is none.
var documents = []struct{ parameter, document, piece, missing string }{
	{"cors", `<CORSConfiguration><CORSRule><AllowedMethod>GET</AllowedMethod><AllowedOrigin>https://*.example.com</AllowedOrigin></CORSRule></CORSConfiguration>`, "https://*.example.com", "NoSuchCORSConfiguration"},
	{"tagging", `<Tagging><TagSet><Tag><Key>team</Key><Value>blue</Value></Tag></TagSet></Tagging>`, "<Value>blue</Value>", "NoSuchTagSet"},
}

func TestRootKeepsDocumentsWithABucketAndEverybodyReadsThem(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.bucket()
	root, holder := rootCredentials(), w.issue("orders/1001", 5)
	for _, d := range documents {
		path := "/orders?" + d.parameter + "="
		if status, code, _ := w.ask(holder, "GET", path, "", nil); status != 404 || code != d.missing {
			t.Errorf("%s before: got %d %s", d.parameter, status, code)
		}
		for _, method := range []string{"PUT", "DELETE"} {
			document := map[string]string{"PUT": d.document}[method]
			if status, code, _ := w.ask(holder, method, path, document, nil); status != 403 || code != "AccessDenied" {
				t.Errorf("%s %s by a lease's holder: got %d %s", method, d.parameter, status, code)
			}
			if status, code, _ := w.ask(root, method, "/another?"+d.parameter+"=", document, nil); status != 404 || code != "NoSuchBucket" {
				t.Errorf("%s %s without the bucket: got %d %s", method, d.parameter, status, code)
			}
		}
		for range 2 {
			if status, code, text := w.ask(root, "PUT", path, d.document, nil); status >= 300 {
				t.Errorf("PUT %s: got %d %s %s", d.parameter, status, code, text)
			}
		}
		if status, _, text := w.ask(holder, "GET", path, "", nil); status != 200 || !strings.Contains(text, d.piece) {
			t.Errorf("GET %s: got %d %s", d.parameter, status, text)
		}
		if status, code, _ := w.ask(root, "GET", "/another?"+d.parameter+"=", "", nil); status != 404 || code != "NoSuchBucket" {
			t.Errorf("GET %s without the bucket: got %d %s", d.parameter, status, code)
		}
	}
	if n := w.count("SELECT count(*) FROM objects.bucket_documents"); n != len(documents) {
		t.Errorf("%d documents are stored", n)
	}
	for _, d := range documents[1:] {
		path := "/orders?" + d.parameter + "="
		for range 2 {
			if status, code, _ := w.ask(root, "DELETE", path, "", nil); status != 204 {
				t.Errorf("DELETE %s: got %d %s", d.parameter, status, code)
			}
		}
		if status, code, _ := w.ask(holder, "GET", path, "", nil); status != 404 || code != d.missing {
			t.Errorf("%s after: got %d %s", d.parameter, status, code)
		}
	}
	if status, _, text := w.ask(root, "DELETE", "/orders", "", nil); status != 204 || w.count("SELECT count(*) FROM objects.bucket_documents") != 0 {
		t.Errorf("the last document stayed with the bucket, or held it: %d %s", status, text)
	}
}

func TestADocumentThatIsMalformedOrTooLongIsRefused(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.bucket()
	rule := func(inner string) string {
		return "<CORSConfiguration><CORSRule>" + inner + "</CORSRule></CORSConfiguration>"
	}
	const origin, get = "<AllowedOrigin>*</AllowedOrigin>", "<AllowedMethod>GET</AllowedMethod>"
	for name, c := range map[string]struct{ parameter, document string }{
		"no XML":         {"cors", "{}"},
		"no rules":       {"cors", "<CORSConfiguration></CORSConfiguration>"},
		"no origin":      {"cors", rule(get)},
		"no method":      {"cors", rule(origin)},
		"two wildcards":  {"cors", rule(get + "<AllowedOrigin>*.*</AllowedOrigin>")},
		"another method": {"cors", rule(origin + "<AllowedMethod>PATCH</AllowedMethod>")},
		"no header":      {"cors", rule(origin + get + "<ExposeHeader>a b</ExposeHeader>")},
		"an age below 0": {"cors", rule(origin + get + "<MaxAgeSeconds>-1</MaxAgeSeconds>")},
		"101 rules":      {"cors", "<CORSConfiguration>" + strings.Repeat("<CORSRule>"+origin+get+"</CORSRule>", 101) + "</CORSConfiguration>"},
		"66 KiB":         {"cors", rule(get + strings.Repeat("<AllowedOrigin>https://a.example.com</AllowedOrigin>", 1300))},
		"a tag twice":    {"tagging", "<Tagging><TagSet>" + strings.Repeat("<Tag><Key>a</Key><Value>b</Value></Tag>", 2) + "</TagSet></Tagging>"},
	} {
		if status, code, text := w.ask(rootCredentials(), "PUT", "/orders?"+c.parameter+"=", c.document, nil); status != 400 || code == "" {
			t.Errorf("%s: got %d %.200s", name, status, text)
		}
	}
	wrong := with(nil, "Content-MD5", md5Of("another document"))
	d := documents[1]
	res, text := w.send(raw{creds: rootCredentials(), method: "PUT", path: "/orders?" + d.parameter + "=", body: body(d.document), size: int64(len(d.document)), header: wrong})
	if res.StatusCode != http.StatusBadRequest || !strings.Contains(text, "BadDigest") {
		t.Errorf("with the digest of another document: got %d %s", res.StatusCode, text)
	}
	if n := w.count("SELECT count(*) FROM objects.bucket_documents"); n != 0 {
		t.Errorf("%d documents are stored", n)
	}
}

// browser sends a cross-origin request as a browser does.
func (w *world) browser(method, path, origin, asks string, creds *credentials.Credentials) *http.Response {
	w.t.Helper()
	header := map[string]string{"Origin": origin}
	var req *http.Request
	if creds != nil {
		req = w.request(raw{creds: *creds, method: method, path: path, body: body(""), header: header})
	} else {
		var err error
		if req, err = http.NewRequestWithContext(w.t.Context(), method, w.url("%s", path), nil); err != nil {
			w.t.Fatal(err)
		}
		req.Header.Set("Origin", origin)
		req.Header.Set("Access-Control-Request-Method", asks)
		req.Header.Set("Access-Control-Request-Headers", "x-amz-date")
	}
	res, err := httpClient(w.t).Do(req)
	if err != nil {
		w.t.Fatal(err)
	}
	readAll(w.t, res.Body)
	return res
}

func TestABrowserMayDoWhatTheBucketsRulesSay(t *testing.T) {
	t.Parallel()
	w := setup(t)
	bucket := w.bucket()
	put(t, w.lease("orders/1001", 5), bucket, invoice, "data")
	const app, other = "https://app.example.com", "https://example.org"
	path, creds := "/orders/"+invoice, w.issue("orders/1001", 5)
	if res := w.browser("OPTIONS", path, app, "GET", nil); res.StatusCode != http.StatusForbidden {
		t.Errorf("preflight without rules: got %d", res.StatusCode)
	}
	_, err := w.root().PutBucketCors(t.Context(), &awss3.PutBucketCorsInput{Bucket: &bucket, CORSConfiguration: &types.CORSConfiguration{CORSRules: []types.CORSRule{{
		AllowedOrigins: []string{app}, AllowedMethods: []string{"GET"}, AllowedHeaders: []string{"x-amz-*"}, ExposeHeaders: []string{"Fencing-Recorded"}, MaxAgeSeconds: aws.Int32(600),
	}}}})
	if err != nil {
		t.Fatal(err)
	}
	const allows, exposes = "Access-Control-Allow-Origin", "Access-Control-Expose-Headers"
	res := w.browser("OPTIONS", path, app, "GET", nil)
	if h := res.Header; res.StatusCode != http.StatusOK || h.Get(allows) != app || h.Get("Access-Control-Allow-Headers") != "x-amz-date" || h.Get("Access-Control-Max-Age") != "600" {
		t.Errorf("preflight: got %d %v", res.StatusCode, h)
	}
	if res = w.browser("OPTIONS", path, app, "PUT", nil); res.StatusCode != http.StatusForbidden || res.Header.Get(allows) != "" {
		t.Errorf("preflight of a PUT: got %d %v", res.StatusCode, res.Header)
	}
	if res = w.browser("OPTIONS", path, other, "GET", nil); res.StatusCode != http.StatusForbidden || res.Header.Get(allows) != "" {
		t.Errorf("preflight of another origin: got %d %v", res.StatusCode, res.Header)
	}
	if res = w.browser("GET", path, app, "", &creds); res.StatusCode != http.StatusOK || res.Header.Get(allows) != app || !strings.Contains(res.Header.Get(exposes), "Fencing-Recorded") {
		t.Errorf("GET: got %d %v", res.StatusCode, res.Header)
	}
	if res = w.browser("GET", path, other, "", &creds); res.StatusCode != http.StatusOK || res.Header.Get(allows) != "" {
		t.Errorf("GET of another origin: got %d %v", res.StatusCode, res.Header)
	}
	if res = w.browser("GET", path+".none", app, "", &creds); res.StatusCode != http.StatusNotFound || res.Header.Get(allows) != app {
		t.Errorf("GET of what is not there: got %d %v", res.StatusCode, res.Header)
	}
	if _, err := w.root().DeleteBucketCors(t.Context(), &awss3.DeleteBucketCorsInput{Bucket: &bucket}); err != nil {
		t.Fatal(err)
	}
	if res = w.browser("GET", path, app, "", &creds); res.Header.Get(allows) != "" {
		t.Errorf("GET without rules any more: got %v", res.Header)
	}
}

func TestTheOnlyACLIsReadAndAnyOtherIsNotImplemented(t *testing.T) {
	t.Parallel()
	w := setup(t)
	bucket := w.bucket()
	put(t, w.lease("orders/1001", 5), bucket, invoice, "data")
	root, creds := w.root(), w.issue("orders/1001", 5)
	of, err := root.GetBucketAcl(t.Context(), &awss3.GetBucketAclInput{Bucket: &bucket})
	if err != nil {
		t.Fatal(err)
	}
	object, err := root.GetObjectAcl(t.Context(), &awss3.GetObjectAclInput{Bucket: &bucket, Key: aws.String(invoice)})
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range []types.AccessControlPolicy{{Owner: of.Owner, Grants: of.Grants}, {Owner: object.Owner, Grants: object.Grants}} {
		if len(a.Grants) != 1 || *a.Owner.ID != rootAccess || *a.Grants[0].Grantee.ID != rootAccess ||
			a.Grants[0].Grantee.Type != types.TypeCanonicalUser || a.Grants[0].Permission != types.PermissionFullControl {
			t.Fatalf("got %+v", a)
		}
		if _, err := root.PutBucketAcl(t.Context(), &awss3.PutBucketAclInput{Bucket: &bucket, AccessControlPolicy: &a}); err != nil {
			t.Error(err)
		}
		if _, err := root.PutObjectAcl(t.Context(), &awss3.PutObjectAclInput{Bucket: &bucket, Key: aws.String(invoice), AccessControlPolicy: &a}); err != nil {
			t.Error(err)
		}
	}
	const policy = `<AccessControlPolicy><Owner><ID>%s</ID></Owner><AccessControlList>%s</AccessControlList></AccessControlPolicy>`
	const grant = `<Grant><Grantee xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance" xsi:type="%s"><ID>%s</ID></Grantee><Permission>%s</Permission></Grant>`
	rootsGrant := fmt.Sprintf(grant, "CanonicalUser", rootAccess, "FULL_CONTROL")
	for name, c := range map[string]struct {
		document, canned, granted string
		bucket, object            int
	}{
		"private":                        {canned: "private", bucket: 200, object: 200},
		"bucket-owner-full-control":      {canned: "bucket-owner-full-control", bucket: 400, object: 200},
		"public-read":                    {canned: "public-read", bucket: 501, object: 501},
		"authenticated-read":             {canned: "authenticated-read", bucket: 501, object: 501},
		"log-delivery-write":             {canned: "log-delivery-write", bucket: 501, object: 400},
		"a canned one of no kind":        {canned: "public-ready", bucket: 400, object: 400},
		"a grant in a header":            {canned: "private", granted: "id=other", bucket: 501, object: 501},
		"nothing":                        {bucket: 400, object: 400},
		"canned and a document":          {canned: "private", document: fmt.Sprintf(policy, rootAccess, rootsGrant), bucket: 400, object: 400},
		"no XML":                         {document: "{}", bucket: 400, object: 400},
		"root's":                         {document: fmt.Sprintf(policy, rootAccess, rootsGrant), bucket: 200, object: 200},
		"no grants":                      {document: fmt.Sprintf(policy, rootAccess, ""), bucket: 501, object: 501},
		"less than full control":         {document: fmt.Sprintf(policy, rootAccess, fmt.Sprintf(grant, "CanonicalUser", rootAccess, "READ")), bucket: 501, object: 501},
		"another owner":                  {document: fmt.Sprintf(policy, "other", rootsGrant), bucket: 501, object: 501},
		"another grantee beside":         {document: fmt.Sprintf(policy, rootAccess, rootsGrant+fmt.Sprintf(grant, "CanonicalUser", "other", "READ")), bucket: 400, object: 400},
		"a group named as root is":       {document: fmt.Sprintf(policy, rootAccess, fmt.Sprintf(grant, "Group", rootAccess, "FULL_CONTROL")), bucket: 501, object: 501},
		"a group's URI beside root's id": {document: fmt.Sprintf(policy, rootAccess, strings.Replace(rootsGrant, "</ID>", "</ID><URI>http://acs.amazonaws.com/groups/global/AllUsers</URI>", 1)), bucket: 501, object: 501},
		"an email address":               {document: fmt.Sprintf(policy, rootAccess, fmt.Sprintf(grant, "AmazonCustomerByEmail", "", "READ")), bucket: 400, object: 400},
		"everybody":                      {document: documentFor("?acl="), bucket: 501, object: 501},
	} {
		header := map[string]string{}
		if c.canned != "" {
			header["x-amz-acl"] = c.canned
		}
		if c.granted != "" {
			header["x-amz-grant-read"] = c.granted
		}
		for path, want := range map[string]int{"/orders?acl=": c.bucket, "/orders/" + invoice + "?acl=": c.object} {
			if status, code, text := w.ask(rootCredentials(), "PUT", path, c.document, header); status != want {
				t.Errorf("%s, PUT %s: got %d %s %.300s, want %d", name, path, status, code, text, want)
			}
		}
	}
	for path, want := range map[string]string{"/another?acl=": "NoSuchBucket", "/orders/1001/none?acl=": "NoSuchKey"} {
		for _, method := range []string{"GET", "PUT"} {
			if status, code, _ := w.ask(creds, method, path, "", map[string]string{"x-amz-acl": "private"}); status != 404 || code != want {
				t.Errorf("%s %s: got %d %s", method, path, status, code)
			}
		}
	}
	if status, code, _ := w.ask(creds, "PUT", "/orders?acl=", "", map[string]string{"x-amz-acl": "private"}); status != 403 || code != "AccessDenied" {
		t.Errorf("a lease's holder sets a bucket's ACL: got %d %s", status, code)
	}
}

// A request that names two operations gets the answer of the one that is carried out.
func TestOneOfTwoOperationsIsDoneAndAnswered(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.bucket()
	status, code, text := w.ask(rootCredentials(), "PUT", "/orders?acl=&tagging=", documents[1].document, nil)
	if stored := w.count("SELECT count(*) FROM objects.bucket_documents"); status != 204 || stored != 1 {
		t.Errorf("got %d %s %s, and %d documents are stored", status, code, text, stored)
	}
	// Otherwise the ACL would be ignored.
	for _, path := range []string{"/orders?acl=&tagging=", "/orders/" + invoice + "?acl=&tagging="} {
		status, code, _ := w.ask(rootCredentials(), "PUT", path, documents[1].document, map[string]string{"x-amz-acl": "public-read"})
		if status != 501 || code != "NotImplemented" {
			t.Errorf("PUT %s with an ACL: got %d %s", path, status, code)
		}
	}
}

// Configurations that no bucket can have are reported as missing, and can be deleted. None of these requests works
// unsigned.
func TestWhatNoBucketCanHaveIsNotFound(t *testing.T) {
	t.Parallel()
	w := setup(t)
	bucket := w.bucket()
	put(t, w.lease("orders/1001", 5), bucket, invoice, "data")
	root, holder := rootCredentials(), w.issue("orders/1001", 5)
	for parameter, code := range map[string]string{
		"policy": "NoSuchBucketPolicy", "encryption": "ServerSideEncryptionConfigurationNotFoundError", "lifecycle": "NoSuchLifecycleConfiguration",
		"replication": "ReplicationConfigurationNotFoundError", "object-lock": "ObjectLockConfigurationNotFoundError",
		"ownershipControls": "OwnershipControlsNotFoundError", "publicAccessBlock": "NoSuchPublicAccessBlockConfiguration",
	} {
		if status, got, _ := w.ask(holder, "GET", "/orders?"+parameter+"=", "", nil); status != 404 || got != code {
			t.Errorf("GET %s: got %d %s", parameter, status, got)
		}
	}
	for _, parameter := range []string{"legal-hold", "retention"} {
		path := "/orders/" + invoice + "?" + parameter + "="
		for method, document := range map[string]string{"GET": "", "PUT": documentFor(path)} {
			if status, code, text := w.ask(holder, method, path, document, nil); status != 400 || code != "InvalidRequest" || !strings.Contains(text, "Object Lock") {
				t.Errorf("%s %s: got %d %s", method, parameter, status, text)
			}
		}
		if status, code, _ := w.ask(holder, "GET", "/orders/1001/none?"+parameter+"=", "", nil); status != 404 || code != "NoSuchKey" {
			t.Errorf("GET %s of no object: got %d %s", parameter, status, code)
		}
	}
	if status, _, text := w.ask(holder, "GET", "/orders?policyStatus=", "", nil); status != 200 || !strings.Contains(text, "<IsPublic>false</IsPublic>") {
		t.Errorf("policyStatus: got %d %s", status, text)
	}
	for _, parameter := range []string{"policy", "encryption", "ownershipControls", "publicAccessBlock"} {
		for _, c := range []struct {
			creds  credentials.Credentials
			bucket string
			want   int
		}{{root, "orders", 204}, {holder, "orders", 403}, {root, "another", 404}} {
			if status, code, _ := w.ask(c.creds, "DELETE", "/"+c.bucket+"?"+parameter+"=", "", nil); status != c.want {
				t.Errorf("DELETE %s of %s: got %d %s", parameter, c.bucket, status, code)
			}
		}
	}
	forged := root
	forged.SecretAccessKey += "x"
	for _, path := range []string{"/orders?acl=", "/orders/" + invoice + "?acl=", "/orders?encryption=", "/orders?ownershipControls=", "/orders?publicAccessBlock=", "/orders?policyStatus="} {
		if status, code, _ := w.ask(forged, "GET", path, "", nil); status != 403 || code != "SignatureDoesNotMatch" {
			t.Errorf("forged GET %s: got %d %s", path, status, code)
		}
		res, err := httpClient(t).Get(w.url("%s", path))
		if err != nil {
			t.Fatal(err)
		}
		if text := readAll(t, res.Body); res.StatusCode != http.StatusForbidden {
			t.Errorf("unsigned GET %s: got %d %s", path, res.StatusCode, text)
		}
	}
	if status, code, _ := w.ask(forged, "PUT", "/orders?tagging=", documents[1].document, nil); status != 403 || code != "SignatureDoesNotMatch" || w.count("SELECT count(*) FROM objects.bucket_documents") != 0 {
		t.Errorf("forged PUT: got %d %s", status, code)
	}
}
