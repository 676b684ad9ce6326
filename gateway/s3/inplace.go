package s3

import (
	"encoding/json"
	"encoding/xml"
	"fmt"
	"net/http"
	"strings"

	"github.com/gofiber/fiber/v3"
	"github.com/versity/versitygw/s3api/middlewares"
	"github.com/versity/versitygw/s3api/utils"
	"github.com/versity/versitygw/s3err"
)

// inPlace answers operations that the front knows, and authenticates, but does not
// pass on as they came. What it answered itself is replaced; none of its own
// answers to them has an effect.
type inPlace struct {
	*backend

	domain string
}

// addressed is what such a request is about; the key is "" for a bucket.
type addressed struct {
	request

	bucket, key string
}

// answers are what the operations do, by name. The first result is the answer's
// document; nil for none.
var answers = map[string]func(*backend, addressed) (document any, status int, err error){
	"DeleteObjects":                   (*backend).deleteDated,
	"GetBucketAcl":                    (*backend).readACL,
	"PutBucketAcl":                    (*backend).writeACL,
	"GetObjectAcl":                    (*backend).readACL,
	"PutObjectAcl":                    (*backend).writeACL,
	"GetBucketPolicyStatus":           (*backend).readPolicyStatus,
	"GetPublicAccessBlock":            (*backend).readPublicAccess,
	"PutPublicAccessBlock":            (*backend).writePublicAccess,
	"DeletePublicAccessBlock":         (*backend).deletePublicAccess,
	"GetBucketEncryption":             none("ServerSideEncryptionConfigurationNotFoundError", "The server side encryption configuration was not found."),
	"DeleteBucketEncryption":          deleteNone,
	"GetBucketLifecycleConfiguration": none("NoSuchLifecycleConfiguration", "The lifecycle configuration does not exist."),
	"GetBucketReplication":            none("ReplicationConfigurationNotFoundError", "The replication configuration was not found."),
}

func (b inPlace) handle(c fiber.Ctx) error {
	if c.Request().URI().QueryArgs().Len() == 0 { // each of them has a parameter
		return c.Next()
	}
	at, e := hostBucket(c, b.domain)
	path, err := pathIn(c, at) // the front changes it
	if next := c.Next(); next != nil || e != nil || err != nil {
		return next
	}
	operation, _ := c.Locals(localOperation).(string)
	do := answers[operation]
	if do == nil || !utils.ContextKeyParsedAcl.IsSet(c) { // it is set when the request is authenticated
		return nil
	}
	a := addressed{request: b.requestOf(c.RequestCtx())}
	a.bucket, a.key, _ = strings.Cut(strings.TrimPrefix(path, "/"), "/")
	if operation == "DeleteObjects" && !unreadable(c.Response().StatusCode(), a.http.Request.Body()) {
		return nil
	}
	var document any
	status := http.StatusOK
	if err = middlewares.VerifyChecksums(false, false, false)(c); err == nil {
		document, status, err = do(b.backend, a)
	}
	return b.write(c, a, operation, document, status, err)
}

// write sends the answer in place of the front's.
func (b inPlace) write(c fiber.Ctx, a addressed, operation string, document any, status int, err error) error {
	var body []byte
	if err == nil && document != nil {
		body, err = xml.Marshal(document)
		body = append([]byte(xml.Header), body...)
	}
	if err != nil {
		e, known := b.fail(a.request, a.bucket, operation, err).(s3err.S3Error) //nolint:errorlint // see codeOf
		if !known {
			e = s3err.GetAPIError(s3err.ErrInternalError)
		}
		return answer(c, e)
	}
	c.Response().ResetBody()
	if document != nil {
		c.Response().Header.SetContentType(fiber.MIMEApplicationXML)
	}
	return c.Status(status).Send(body)
}

// there says why a bucket, or the object that the request names, is not there.
func (b *backend) there(a addressed) error {
	if a.key == "" {
		_, err := b.db.rule(b.base, a.bucket)
		return err
	}
	_, err := b.find(a.bucket, a.key, a.query("versionId"))
	return err
}

// none answers that a bucket has no such configuration, which none can have.
func none(code, message string) func(*backend, addressed) (any, int, error) {
	return func(b *backend, a addressed) (any, int, error) {
		if err := b.there(a); err != nil {
			return nil, 0, err
		}
		return nil, 0, apiError{code: code, status: http.StatusNotFound, message: message}
	}
}

// deleteNone deletes a configuration that no bucket can have.
func deleteNone(b *backend, a addressed) (any, int, error) {
	if !a.root {
		return nil, 0, s3err.GetAPIError(s3err.ErrAccessDenied)
	}
	return nil, http.StatusNoContent, b.there(a)
}

func (b *backend) readACL(a addressed) (any, int, error) {
	return b.rootsACL(), http.StatusOK, b.there(a)
}

// writeACL changes nothing, so it needs no grant.
func (b *backend) writeACL(a addressed) (any, int, error) {
	err := b.there(a)
	if err == nil {
		err = b.setACL(a.request, a.bucket, a.key != "")
	}
	if err == nil && a.key == "" && !a.root {
		err = s3err.GetAPIError(s3err.ErrAccessDenied)
	}
	return nil, http.StatusOK, err
}

// readPolicyStatus: without policies nothing is public.
func (b *backend) readPolicyStatus(a addressed) (any, int, error) {
	return struct {
		XMLName  xml.Name `xml:"PolicyStatus"`
		IsPublic bool
	}{}, http.StatusOK, b.there(a)
}

func (b *backend) readPublicAccess(a addressed) (any, int, error) {
	block, set, err := b.publicAccess(a.bucket)
	if err == nil && !set {
		err = apiError{
			code: "NoSuchPublicAccessBlockConfiguration", status: http.StatusNotFound,
			message: "The public access block configuration was not found.",
		}
	}
	return block, http.StatusOK, err
}

func (b *backend) writePublicAccess(a addressed) (any, int, error) {
	var asked publicAccess
	if xml.Unmarshal(a.http.Request.Body(), &asked) != nil {
		return nil, 0, s3err.GetAPIError(s3err.ErrMalformedXML)
	}
	text, err := json.Marshal(asked)
	if err != nil {
		return nil, 0, fmt.Errorf("encode what bucket %q blocks: %w", a.bucket, err)
	}
	return nil, http.StatusOK, b.setDocument(a.http, a.bucket, kindPublicAccess, "PutPublicAccessBlock", string(text))
}

func (b *backend) deletePublicAccess(a addressed) (any, int, error) {
	return nil, http.StatusNoContent, b.setDocument(a.http, a.bucket, kindPublicAccess, "DeletePublicAccessBlock", "")
}
