package s3

import (
	"context" //nolint:gosec // S3 defines the ETag as the MD5 of the bytes
	//nolint:gosec // S3 defines the ETag of a multipart object by the MD5 of its parts
	"net/http"
	"strings"
	"time"

	"github.com/gofiber/fiber/v3"
	"github.com/valyala/fasthttp"
	"github.com/versity/versitygw/metrics"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/gateway/objects"
	"github.com/fencegate/fencegate/gateway/s3/credentials"
	"github.com/fencegate/fencegate/gateway/s3/edge"
	"github.com/fencegate/fencegate/gateway/s3/s3error"
)

// requestOf reads the context that versitygw passes on, which is the HTTP request itself. It copies what it keeps,
// because the buffer does not outlive the request.
func (b *backend) requestOf(ctx context.Context) request {
	rc, ok := ctx.(*fasthttp.RequestCtx)
	if !ok {
		return request{}
	}
	r := request{http: rc}
	if s, leased := b.sessionOf(rc); leased {
		r.grant, r.leased, r.terms = objects.Proof{Resource: s.Resource, Token: s.Token}, true, s.Terms
		if !time.Now().Before(s.Expires) {
			r.expired = new(lapse)
		}
	} else {
		account := accountOf(rc)
		r.root = !account.IsSession && account.Access != "" && account.Access == b.cfg.RootAccessKey
	}
	// The id need not be signed: botocore does not sign it. An id added on the way can make a write fail, or repeat its
	// earlier answer; it admits no write.
	if id := r.header(edge.HeaderInvocation); len(id) <= maxInvocation {
		r.invocation = id
	}
	return r
}

// addressedBy copies the names, because the request's buffer is reused.
func (b *backend) addressedBy(c fiber.Ctx) addressed {
	a := addressed{request: b.requestOf(c.RequestCtx())}
	a.bucket, a.key, _ = strings.Cut(strings.TrimPrefix(strings.Clone(c.Path()), "/"), "/")
	return a
}

// sessionOf returns the session of a lease's credentials, which versitygw has authenticated through iam.
func (b *backend) sessionOf(rc *fasthttp.RequestCtx) (credentials.Session, bool) {
	account := accountOf(rc)
	if !account.IsSession {
		return credentials.Session{}, false
	}
	s, err := b.cfg.Keys.Open(account.SessionToken)
	return s, err == nil
}

// needGrant refuses a write that neither a lease's credentials nor a Fencing-Token header authorizes. The header's
// grant is for the resource that the key needs; the fence authenticates it by its seal.
func (b *backend) needGrant(r *request, bucket, key string) error {
	if r.stages() {
		if err := r.checkStage(); err != nil {
			return err
		}
	}
	if r.terms.Has(credentials.ReadOnly) {
		return errReadOnly
	}
	if r.expired != nil {
		return b.onlyRepeat(r, bucket, key)
	}
	presented := ""
	if r.http != nil {
		presented = r.header(edge.HeaderToken)
	}
	if r.terms.Has(credentials.WhileHeld) {
		if _, err := b.held.check(b.base, r.grant); err != nil {
			return err
		}
	}
	if presented == "" && r.grant.Token > 0 {
		return nil
	}
	rule, err := b.catalog.RuleOf(b.base, bucket, key)
	if err != nil {
		return err
	}
	needed := rule.Resource(bucket, key)
	switch {
	case presented == "" && rule.Unchecked() && r.root:
		return nil
	case presented != "" && rule.Unchecked():
		return edge.InvalidToken("is presented where nothing checks it: the rule of this key is none; leave it out")
	case presented == "":
		return &fence.NoGrantError{Needed: needed}
	case r.leased:
		return edge.InvalidToken("is presented beside a lease's credentials; one of the two must go")
	case !r.root, !r.signed(edge.HeaderToken):
		return edge.InvalidToken("is not among the signed headers")
	}
	g, err := fence.ParseGrant(needed, presented)
	if err != nil {
		return edge.InvalidToken("is malformed: " + err.Error()) // the error repeats no part of it
	}
	switch monotone := rule.IsMonotone(); {
	case monotone && !g.Seal.IsZero():
		return edge.InvalidToken("has a seal; the rule of this key is monotone, which takes a bare TOKEN")
	case monotone:
		r.grant = objects.Proof{Resource: needed, Token: g.Token, SealHash: []byte{}} // no seal, which differs from not presented
		return nil
	case g.Seal.IsZero():
		return edge.InvalidToken("has no seal; it reads TOKEN.SEAL")
	}
	r.grant = objects.Proof{Resource: needed, Token: g.Token, SealHash: g.Seal.Hash()}
	return nil
}

// onlyRepeat prepares a write under expired credentials. The fence refuses its grant, whatever it has recorded. So the
// write is answered if an earlier attempt has done it, and changes nothing. An attempt in progress under the same grant
// is refused too if the lease is over. Where no fence is asked, the write is refused.
func (b *backend) onlyRepeat(r *request, bucket, key string) error {
	r.grant.SealHash = noSeal
	rule, err := b.catalog.RuleOf(b.base, bucket, key)
	if err == nil && rule.Unchecked() {
		err = errExpired
	}
	if err == nil {
		r.expired.undecided = b.held.settle(b.base, r.grant)
	}
	return err
}

// noSeal is the hash of no seal: no fence records it.
var noSeal = make([]byte, 32)

// errReadOnly refuses a write under read-only credentials.
var errReadOnly = s3error.Error{
	Code: "AccessDenied", Status: http.StatusForbidden, Message: "These credentials are limited to reading. Nothing was changed.",
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
