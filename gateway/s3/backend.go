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

// backend does versitygw's operations. Those that it does not have answer
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
	held    *held               // asked before writes
	current *held               // asked before reads
	denials denials
}

var _ front.Backend = (*backend)(nil)

func newBackend(base context.Context, cfg config) (*backend, error) {
	acl, err := json.Marshal(auth.ACL{Owner: cfg.RootAccessKey})
	if err != nil {
		return nil, fmt.Errorf("encode the buckets' ACL: %w", err)
	}
	db := objects.NewDatabase(cfg.Pool, cfg.DatabaseTimeout).Changes(cfg.Changes)
	b := &backend{cfg: cfg, base: base, acl: acl, catalog: objects.NewCatalog(db), keeper: maintenance.New(db, cfg.Store)}
	b.held, b.current = newHeld(cfg.Leases)
	b.reader = objects.NewReader(db, cfg.Store, cfg.Logger)
	b.writer = objects.NewWriter(base, objects.Config{
		DB: db, Store: cfg.Store, Log: cfg.Logger, Owned: b.keeper.Owned, Decided: cfg.Metrics.Committed, Reserve: cfg.Reserve,
	}, b.reader)
	return b, nil
}

func (*backend) String() string { return "fencegate" }

// What versitygw asks on each call is answered from memory. Whether the bucket
// exists is found by the operation itself.

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
