package s3

import (
	"net/http"

	"github.com/gofiber/fiber/v3"
	"github.com/versity/versitygw/metrics"
	"github.com/versity/versitygw/s3err"

	"github.com/fencegate/fencegate/gateway/access"
	"github.com/fencegate/fencegate/gateway/s3/credentials"
)

// within refuses requests outside a session's resource if its credentials are limited to it. The fence checks the
// target of writes; within checks what they read, such as the source of a copy.
func (p *port) within(r route) fiber.Handler {
	return func(c fiber.Ctx) error {
		s, leased := p.backend.sessionOf(c.RequestCtx())
		asked := p.backend.addressedBy(c)
		if !p.backend.permitted(asked.request, s, leased, r.action) {
			return p.backend.fail(asked.request, asked.bucket, r.action, asked.noRight())
		}
		if asked.over(r.action) {
			return p.backend.fail(asked.request, asked.bucket, r.action, errExpired)
		}
		reads := c.Method() == http.MethodGet || c.Method() == http.MethodHead || tells[r.action]
		if reads {
			if err := p.backend.goesOn(asked.request); err != nil {
				return p.backend.fail(asked.request, asked.bucket, r.action, err)
			}
		}
		if !leased || !s.Terms.Has(credentials.OwnKeys) && p.backend.cfg.readsAll(s) {
			return nil
		}
		allowed, err := p.backend.ownReads(c, r, asked)
		if err == nil && !allowed {
			if !s.Terms.Has(credentials.OwnKeys) { // its principal may read nothing else
				p.backend.tellDenied(asked.request, right{s.Principal, access.S3Read, ""}, r.action)
			}
			err = s3err.GetAPIError(s3err.ErrAccessDenied)
		}
		if err != nil {
			return p.backend.fail(asked.request, asked.bucket, r.action, err)
		}
		return nil
	}
}

// ownReads reports whether a request reads only what belongs to its session's resource.
func (b *backend) ownReads(c fiber.Ctx, r route, asked addressed) (bool, error) {
	switch write := c.Method() != http.MethodGet && c.Method() != http.MethodHead; {
	case r.header == headerCopySource:
		return b.ownSource(asked.request, c.Get(headerCopySource))
	case write && !tells[r.action]:
		return true, nil
	case asked.key != "":
		return b.ownKey(asked.request, asked.bucket, asked.key)
	case listed[r.action]:
		return b.ownPrefix(asked.request, asked.bucket, asked.query("prefix"))
	}
	// The others reveal nothing about keys.
	return r.action == metrics.ActionHeadBucket || r.action == metrics.ActionGetBucketLocation, nil
}

// goesOn refuses reads under credentials that end with their lease, once that is over. The fence refuses their writes;
// a copy, which does both, may have been made before.
func (b *backend) goesOn(r request) error {
	if !r.terms.Has(credentials.EndHeld) {
		return nil
	}
	held, err := b.current.check(b.base, r.grant)
	if err == nil && !held {
		err = errExpired
	}
	return err
}

// tells are writes of objects that change nothing, so the fence does not check them. Their answers reveal whether a key
// exists.
var tells = map[string]bool{
	metrics.ActionPutObjectAcl: true, metrics.ActionPutObjectRetention: true, metrics.ActionPutObjectLegalHold: true, metrics.ActionRestoreObject: true,
}

// listed are the operations that list keys below a prefix.
var listed = map[string]bool{
	metrics.ActionListObjects: true, metrics.ActionListObjectsV2: true, metrics.ActionListObjectVersions: true, metrics.ActionListMultipartUploads: true,
}

func (b *backend) ownSource(r request, source string) (bool, error) {
	bucket, key, _, err := parseSource(source)
	if err != nil {
		return false, err
	}
	return b.ownKey(r, bucket, key)
}

// ownKey reports whether a write of the key needs the session's resource.
func (b *backend) ownKey(r request, bucket, key string) (bool, error) {
	rule, err := b.catalog.RuleOf(b.base, bucket, key)
	return err == nil && !rule.Unchecked() && rule.Resource(bucket, key) == r.grant.Resource, err
}

// ownPrefix reports whether every key with the prefix needs the session's resource.
func (b *backend) ownPrefix(r request, bucket, prefix string) (bool, error) {
	found, err := b.catalog.Bucket(b.base, bucket)
	return err == nil && found.Covers(prefix, r.grant.Resource), err
}
