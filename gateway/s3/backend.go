package s3

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/versity/versitygw/auth"
	front "github.com/versity/versitygw/backend"
	"github.com/versity/versitygw/s3err"

	"github.com/fencegate/fencegate/gateway/objects"
	"github.com/fencegate/fencegate/gateway/objects/maintenance"
)

// backend implements versitygw's operations. Operations that it lacks answer NotImplemented through the embedded type.
// versitygw's contexts are [fasthttp.RequestCtx]: they do not end when the client disconnects or when the server begins
// to stop. So the work runs under base, with its own deadlines.
type backend struct {
	front.BackendUnsupported

	cfg     config
	base    context.Context //nolint:containedctx // the server's life; see above
	acl     []byte
	catalog *objects.Catalog
	reader  *objects.Reader
	writer  *objects.Writer
	keeper  *maintenance.Keeper // knows whether the store belongs to this database
	held    *held               // checked before writes
	current *held               // checked before reads
	denials denials
	copies  *copies
}

var _ front.Backend = (*backend)(nil)

func newBackend(base context.Context, cfg config, uploads *slots) (*backend, error) {
	acl, err := json.Marshal(auth.ACL{Owner: cfg.RootAccessKey})
	if err != nil {
		return nil, fmt.Errorf("encode the buckets' ACL: %w", err)
	}
	db := objects.NewDatabase(cfg.Pool, cfg.DatabaseTimeout).Changes(cfg.Changes)
	b := &backend{cfg: cfg, base: base, acl: acl, catalog: objects.NewCatalog(db), keeper: maintenance.New(db, cfg.Store), copies: newCopies(uploads, 6*cfg.patience)}
	b.held, b.current = newHeld(cfg.Leases)
	b.reader = objects.NewReader(db, cfg.Store, cfg.Logger)
	b.writer = objects.NewWriter(base, objects.Config{
		DB: db, Store: cfg.Store, Log: cfg.Logger, Owned: b.keeper.Owned, Decided: cfg.Metrics.Committed, Reserve: cfg.Reserve,
	}, b.reader)
	return b, nil
}

func (*backend) String() string { return "fencegate" }

// versitygw calls these for each request, so they answer from memory. The operation itself finds whether the bucket
// exists.

// GetBucketAcl implements versitygw's Backend: root owns everything.
func (b *backend) GetBucketAcl(context.Context, *s3.GetBucketAclInput) ([]byte, error) {
	return b.acl, nil
}

// GetBucketPolicy implements versitygw's Backend: there are no policies.
func (*backend) GetBucketPolicy(context.Context, string) ([]byte, error) {
	return nil, s3err.GetAPIError(s3err.ErrNoSuchBucketPolicy)
}

// GetObjectLockConfiguration implements versitygw's Backend: there is none.
func (*backend) GetObjectLockConfiguration(context.Context, string) ([]byte, error) {
	return nil, s3err.GetAPIError(s3err.ErrObjectLockConfigurationNotFound)
}
