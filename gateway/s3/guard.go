package s3

import (
	"context"
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

// guard decides what a request may change and read: by its grant, its lease's credentials, and the rules of the keys.
type guard struct {
	base    context.Context //nolint:containedctx // the server's life
	root    string          // root's access key
	keys    *credentials.Keyring
	catalog *objects.Catalog
	writes  *leaseCache // checked before writes
	reads   *leaseCache // checked before reads
}

// requestOf reads the context that versitygw passes on, which is the HTTP request itself. It copies what it keeps,
// because the buffer does not outlive the request.
func (g *guard) requestOf(ctx context.Context) request {
	rc, ok := ctx.(*fasthttp.RequestCtx)
	if !ok {
		return request{}
	}
	r := request{http: rc}
	if s, leased := g.sessionOf(rc); leased {
		r.grant, r.leased, r.terms = objects.Proof{Resource: s.Resource, Token: s.Token}, true, s.Terms
		if !time.Now().Before(s.Expires) {
			r.expired = new(lapse)
		}
	} else {
		account := accountOf(rc)
		r.root = !account.IsSession && account.Access != "" && account.Access == g.root
	}
	// The id need not be signed: botocore does not sign it. An id added on the way can make a write fail, or repeat its
	// earlier answer; it admits no write.
	if id := r.header(edge.HeaderInvocation); len(id) <= maxInvocation {
		r.invocation = id
	}
	return r
}

// targetOf copies the names, because the request's buffer is reused.
func (g *guard) targetOf(c fiber.Ctx) target {
	a := target{request: g.requestOf(c.RequestCtx())}
	a.bucket, a.key, _ = strings.Cut(strings.TrimPrefix(strings.Clone(c.Path()), "/"), "/")
	return a
}

// sessionOf returns the session of a lease's credentials, which versitygw has authenticated through iam.
func (g *guard) sessionOf(rc *fasthttp.RequestCtx) (credentials.Session, bool) {
	account := accountOf(rc)
	if !account.IsSession {
		return credentials.Session{}, false
	}
	s, err := g.keys.Open(account.SessionToken)
	return s, err == nil
}

// needGrant refuses a write that neither a lease's credentials nor a Fencing-Token header authorizes. The header's
// grant is for the resource that the key needs; the fence authenticates it by its seal.
func (g *guard) needGrant(r *request, bucket, key string) error {
	if r.stages() {
		if err := r.checkStage(); err != nil {
			return err
		}
	}
	if r.terms.Has(credentials.ReadOnly) {
		return errReadOnly
	}
	if r.expired != nil {
		return g.admitRepeat(r, bucket, key)
	}
	presented := ""
	if r.http != nil {
		presented = r.header(edge.HeaderToken)
	}
	if r.terms.Has(credentials.WhileHeld) {
		if _, err := g.writes.check(g.base, r.grant); err != nil {
			return err
		}
	}
	if presented == "" && r.grant.Token > 0 {
		return nil
	}
	rule, err := g.catalog.RuleOf(g.base, bucket, key)
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
	grant, err := fence.ParseGrant(needed, presented)
	if err != nil {
		return edge.InvalidToken("is malformed: " + err.Error()) // the error repeats no part of it
	}
	switch monotone := rule.IsMonotone(); {
	case monotone && !grant.Seal.IsZero():
		return edge.InvalidToken("has a seal; the rule of this key is monotone, which takes a bare TOKEN")
	case monotone:
		r.grant = objects.Proof{Resource: needed, Token: grant.Token, SealHash: []byte{}} // no seal, which differs from not presented
		return nil
	case grant.Seal.IsZero():
		return edge.InvalidToken("has no seal; it reads TOKEN.SEAL")
	}
	r.grant = objects.Proof{Resource: needed, Token: grant.Token, SealHash: grant.Seal.Hash()}
	return nil
}

// admitRepeat prepares a write under expired credentials. The fence refuses its grant, whatever it has recorded. So the
// write is answered if an earlier attempt has done it, and changes nothing. An attempt in progress under the same grant
// is refused too if the lease is over. Where no fence is asked, the write is refused.
func (g *guard) admitRepeat(r *request, bucket, key string) error {
	r.grant.SealHash = noSeal
	rule, err := g.catalog.RuleOf(g.base, bucket, key)
	if err == nil && rule.Unchecked() {
		err = errExpired
	}
	if err == nil {
		r.expired.undecided = g.writes.settle(g.base, r.grant)
	}
	return err
}

// noSeal is the hash of no seal: no fence records it.
var noSeal = make([]byte, 32)

// errReadOnly refuses a write under read-only credentials.
var errReadOnly = s3error.Error{
	Code: "AccessDenied", Status: http.StatusForbidden, Message: "These credentials are limited to reading. Nothing was changed.",
}

// checkLease refuses reads under credentials that end with their lease, once that is over. The fence refuses their
// writes; a copy, which does both, may have been made before.
func (g *guard) checkLease(r request) error {
	if !r.terms.Has(credentials.EndHeld) {
		return nil
	}
	isHeld, err := g.reads.check(g.base, r.grant)
	if err == nil && !isHeld {
		err = errExpired
	}
	return err
}

// readsOwn reports whether a request reads only what belongs to its session's resource. source is that of a copy, else
// "".
func (g *guard) readsOwn(asked target, action, source string) (bool, error) {
	switch {
	case source != "":
		return g.ownsSource(asked.request, source)
	case !asked.reads() && !revealing[action]:
		return true, nil
	case asked.key != "":
		return g.ownsKey(asked.request, asked.bucket, asked.key)
	case listings[action]:
		return g.ownsPrefix(asked.request, asked.bucket, asked.query("prefix"))
	}
	// The others reveal nothing about keys.
	return action == metrics.ActionHeadBucket || action == metrics.ActionGetBucketLocation, nil
}

// revealing are writes of objects that change nothing, so the fence does not check them. Their answers reveal whether a
// key exists.
var revealing = map[string]bool{
	metrics.ActionPutObjectAcl: true, metrics.ActionPutObjectRetention: true, metrics.ActionPutObjectLegalHold: true, metrics.ActionRestoreObject: true,
}

// listings are the operations that list keys below a prefix.
var listings = map[string]bool{
	metrics.ActionListObjects: true, metrics.ActionListObjectsV2: true, metrics.ActionListObjectVersions: true, metrics.ActionListMultipartUploads: true,
}

func (g *guard) ownsSource(r request, source string) (bool, error) {
	bucket, key, _, err := parseSource(source)
	if err != nil {
		return false, err
	}
	return g.ownsKey(r, bucket, key)
}

// ownsKey reports whether a write of the key needs the session's resource.
func (g *guard) ownsKey(r request, bucket, key string) (bool, error) {
	rule, err := g.catalog.RuleOf(g.base, bucket, key)
	return err == nil && !rule.Unchecked() && rule.Resource(bucket, key) == r.grant.Resource, err
}

// ownsPrefix reports whether every key with the prefix needs the session's resource.
func (g *guard) ownsPrefix(r request, bucket, prefix string) (bool, error) {
	found, err := g.catalog.Bucket(g.base, bucket)
	return err == nil && found.Covers(prefix, r.grant.Resource), err
}
