package s3

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/versity/versitygw/auth"
	front "github.com/versity/versitygw/backend"
	"github.com/versity/versitygw/s3err"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/gateway/objects"
	"github.com/fencegate/fencegate/gateway/objects/maintenance"
	"github.com/fencegate/fencegate/gateway/s3/s3error"
)

// backend does the front's operations. Those that it does not have answer
// NotImplemented, through the embedded type. Its contexts are [fasthttp.RequestCtx]:
// they end neither when the client goes nor before the server is told to stop,
// so the work runs under base, with deadlines of its own.
type backend struct {
	front.BackendUnsupported

	cfg     config
	base    context.Context //nolint:containedctx // the server's life; see above
	acl     []byte
	catalog *objects.Catalog
	reader  *objects.Reader
	writer  *objects.Writer
	keeper  *maintenance.Keeper // knows whether the store is ours
}

var _ front.Backend = (*backend)(nil)

func newBackend(base context.Context, cfg config) (*backend, error) {
	acl, err := json.Marshal(auth.ACL{Owner: cfg.RootAccessKey})
	if err != nil {
		return nil, fmt.Errorf("encode the buckets' ACL: %w", err)
	}
	db := objects.NewDatabase(cfg.Pool, cfg.DatabaseTimeout)
	b := &backend{cfg: cfg, base: base, acl: acl, catalog: objects.NewCatalog(db), keeper: maintenance.New(db, cfg.Store)}
	b.reader = objects.NewReader(db, cfg.Store, cfg.Logger)
	b.writer = objects.NewWriter(base, objects.Config{
		DB: db, Store: cfg.Store, Log: cfg.Logger, Owned: b.keeper.Owned, Decided: cfg.Metrics.Committed, Reserve: cfg.Reserve,
	}, b.reader)
	return b, nil
}

func (*backend) String() string { return "fencegate" }

// fail turns any error of an operation into what the client gets, and logs what
// the operator must know.
func (b *backend) fail(r request, bucket, operation string, err error) error {
	if code, ok := fence.CodeOf(err); ok {
		e := s3error.Refusal(err, code)
		r.refuse(e.Fencing)
		b.cfg.Logger.Info("s3: refused", "operation", operation, "bucket", bucket, "code", code.SQLState,
			"resource", e.Fencing.Resource, "needed", e.Fencing.Needed, "presented", e.Fencing.Presented, "recorded", e.Fencing.Recorded)
		return e
	}
	unknown := errors.Is(err, fence.ErrUnknown)
	if m, ok := errors.AsType[*objects.MarkerError](err); ok && r.http != nil {
		r.http.Response.Header.Set("X-Amz-Delete-Marker", "true")
		r.http.Response.Header.Set("X-Amz-Version-Id", m.ID.String())
	}
	if e, ok := errors.AsType[unmodifiedError](err); ok {
		e.tell(r)
	}
	if e := s3error.Of(err, bucket); e != nil && !unknown {
		return e
	}
	b.cfg.Logger.Error("s3: failed", "operation", operation, "bucket", bucket, "error", err)
	switch {
	case unknown:
		return s3error.Unavailable(s3error.MessageUnknown)
	case errors.Is(err, objects.ErrDatabaseAway):
		return s3error.Unavailable(s3error.MessageDatabaseAway)
	case errors.Is(err, objects.ErrStoreFailed):
		return s3error.Unavailable(s3error.MessageStoreFailed)
	}
	return s3err.GetAPIError(s3err.ErrInternalError)
}

// What the front asks on each call is answered from memory. Whether the bucket
// exists is found by the operation itself.

// GetBucketAcl implements the front's Backend: root owns everything.
func (b *backend) GetBucketAcl(context.Context, *s3.GetBucketAclInput) ([]byte, error) {
	return b.acl, nil
}

// GetBucketPolicy implements the front's Backend: there are no policies.
func (*backend) GetBucketPolicy(context.Context, string) ([]byte, error) {
	return nil, s3err.GetAPIError(s3err.ErrNoSuchBucketPolicy)
}

// GetObjectLockConfiguration implements the front's Backend: there is none.
func (*backend) GetObjectLockConfiguration(context.Context, string) ([]byte, error) {
	return nil, s3err.GetAPIError(s3err.ErrObjectLockConfigurationNotFound)
}
