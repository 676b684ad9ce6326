package s3

import (
	"encoding/xml"
	"net/http"
	"strings"

	"github.com/gofiber/fiber/v3"
	"github.com/versity/versitygw/metrics"
	"github.com/versity/versitygw/s3api/controllers"
	"github.com/versity/versitygw/s3err"

	"github.com/fencegate/fencegate/gateway/s3/s3error"
)

// ours wraps an answer of our own as an operation of versitygw.
func ours(action string, do ownAnswer) operation {
	name := strings.TrimPrefix(action, actionPrefix)
	return func(p *port, c fiber.Ctx) (*controllers.Response, error) {
		a := p.backend.addressedBy(c)
		document, status, err := do(p.backend, a)
		if err != nil {
			return &controllers.Response{}, p.backend.fail(a.request, a.bucket, name, err)
		}
		c.Response().Header.SetContentType(fiber.MIMEApplicationXML)
		return &controllers.Response{Data: document, MetaOpts: &controllers.MetaOptions{Status: status}}, nil
	}
}

// addressedBy copies the names, because the request's buffer is reused.
func (b *backend) addressedBy(c fiber.Ctx) addressed {
	a := addressed{request: b.requestOf(c.RequestCtx())}
	a.bucket, a.key, _ = strings.Cut(strings.TrimPrefix(strings.Clone(c.Path()), "/"), "/")
	return a
}

// there returns an error if the bucket, or the object that the request names, does not exist.
func (b *backend) there(a addressed) error {
	if a.key == "" {
		_, err := b.catalog.Rule(b.base, a.bucket)
		return err
	}
	_, err := b.reader.Find(b.base, a.bucket, a.key, a.query("versionId"))
	return err
}

// none answers that a bucket has no such configuration; no bucket can have one.
func none(code, message string) ownAnswer {
	return func(b *backend, a addressed) (any, int, error) {
		if err := b.there(a); err != nil {
			return nil, 0, err
		}
		return nil, 0, s3error.Error{Code: code, Status: http.StatusNotFound, Message: message}
	}
}

var (
	noOwnership    = none("OwnershipControlsNotFoundError", "The bucket ownership controls were not found.")
	noPublicAccess = none("NoSuchPublicAccessBlockConfiguration", "The public access block configuration was not found.")
	noEncryption   = none("ServerSideEncryptionConfigurationNotFoundError", "The server side encryption configuration was not found.")
	noLifecycle    = none("NoSuchLifecycleConfiguration", "The lifecycle configuration does not exist.")
	noReplication  = none("ReplicationConfigurationNotFoundError", "The replication configuration was not found.")
)

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

// writeACL needs no grant, because it changes nothing.
func (b *backend) writeACL(a addressed) (any, int, error) {
	err := b.there(a)
	if err == nil {
		err = b.setACL(a.request, a.key != "")
	}
	if err == nil && a.key == "" && !a.root {
		err = s3err.GetAPIError(s3err.ErrAccessDenied)
	}
	return nil, http.StatusOK, err
}

// readPolicyStatus answers that nothing is public, because there are no policies.
func (b *backend) readPolicyStatus(a addressed) (any, int, error) {
	return struct {
		XMLName  xml.Name `xml:"PolicyStatus"`
		IsPublic bool
	}{}, http.StatusOK, b.there(a)
}

// deleteObjects calls versitygw, except for lists that it cannot parse.
func deleteObjects(p *port, c fiber.Ctx) (*controllers.Response, error) {
	if unreadable(c.BodyRaw()) {
		return deleteDatedObjects(p, c)
	}
	return p.ctl.DeleteObjects(c)
}

var deleteDatedObjects = ours(metrics.ActionDeleteObjects, (*backend).deleteDated)
