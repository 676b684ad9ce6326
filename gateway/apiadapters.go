package gateway

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/gateway/api"
	"github.com/fencegate/fencegate/gateway/fencedsql"
	"github.com/fencegate/fencegate/gateway/objects"
	"github.com/fencegate/fencegate/gateway/pgwire"
	"github.com/fencegate/fencegate/gateway/primary"
	"github.com/fencegate/fencegate/gateway/s3/credentials"
	"github.com/fencegate/fencegate/wire"
)

// issuer serves the API's S3 credentials from the keyring.
type issuer struct{ keyring *credentials.Keyring }

var _ api.Credentials = issuer{}

func (c issuer) Issue(resource string, token fence.Token, expires time.Time, terms api.CredentialTerms) (wire.Credentials, error) {
	var all credentials.Terms
	for _, t := range []struct {
		on   bool
		term credentials.Terms
	}{{terms.WhileHeld, credentials.WhileHeld}, {terms.OwnKeys, credentials.OwnKeys}, {terms.ReadOnly, credentials.ReadOnly}, {terms.EndHeld, credentials.EndHeld}} {
		if t.on {
			all |= t.term
		}
	}
	issued, err := c.keyring.IssueTo(terms.Principal, resource, token, expires, all)
	if err != nil {
		return wire.Credentials{}, err
	}
	return wire.Credentials{
		AccessKeyID: issued.AccessKeyID, SecretAccessKey: issued.SecretAccessKey,
		SessionToken: issued.SessionToken, ExpiresAt: issued.Expires,
	}, nil
}

// sessions serves the API's sessions from the PostgreSQL port.
type sessions struct{ server *pgwire.Server }

var _ api.Sessions = sessions{}

func (s sessions) List() []wire.Session {
	open := s.server.Sessions()
	all := make([]wire.Session, len(open))
	for i, one := range open {
		all[i] = wire.Session{
			ID: one.ID, Client: one.Client, User: one.User, Database: one.Database, State: one.State,
			Since: one.Since, FromClient: one.FromClient, ToClient: one.ToClient,
		}
		all[i].App = one.Application
		if pid := int64(one.PID); pid != 0 {
			all[i].PID = &pid
		}
		if ms := one.StatementAge.Milliseconds(); one.StatementAge != 0 {
			all[i].Statement = &ms
		}
		if one.Resource != "" {
			all[i].Resource = &one.Resource
		}
		if one.Token != 0 {
			all[i].Token = &one.Token
		}
	}
	return all
}

func (s sessions) End(id string) bool { return s.server.End(id) }

// buckets serves the API's buckets from the S3 gateway.
type buckets struct{ catalog *objects.Catalog }

var _ api.Buckets = buckets{}

func (b buckets) EnsureBucket(ctx context.Context, name string, want wire.BucketRequest) (created bool, err error) {
	var set objects.BucketSettings
	if want.Rule != "" {
		set.Rule, err = setting(objects.ParseRule(want.Rule))
	}
	if want.Keep != "" && err == nil {
		set.Keep, err = setting(objects.ParseKeep(want.Keep))
	}
	if want.WriteOnce != "" && err == nil {
		set.Retained, err = setting(objects.ParseRetention(want.WriteOnce))
	}
	if err != nil {
		return false, err
	}
	created, err = b.catalog.SetBucket(ctx, name, set)
	return created, bucketError(ctx, name, err)
}

func setting[T any](v T, err error) (*T, error) { return &v, err }

func (b buckets) InspectBucket(ctx context.Context, name string) (wire.Bucket, error) {
	found, err := b.catalog.Bucket(ctx, name)
	return shownBucket(found), bucketError(ctx, name, err)
}

func (b buckets) ListBuckets(ctx context.Context, after string, limit int) ([]wire.Bucket, error) {
	found, err := b.catalog.Buckets(ctx, after, limit)
	all := make([]wire.Bucket, len(found))
	for i, one := range found {
		all[i] = shownBucket(one)
	}
	return all, bucketError(ctx, "", err)
}

func shownBucket(b objects.Bucket) wire.Bucket {
	shown := wire.Bucket{Bucket: b.Name, Rule: b.Rule.String(), Keep: b.Keep.String(), WriteOnce: objects.ShowRetention(b.Retained), CreatedAt: b.Created}
	for _, p := range b.Prefixes {
		shown.Prefixes = append(shown.Prefixes, wire.PrefixRule{Prefix: p.Prefix, Rule: p.Rule.String()})
	}
	return shown
}

func (b buckets) SetPrefixRule(ctx context.Context, name, prefix, text string) error {
	rule, err := objects.ParseRule(text)
	if err != nil {
		return err
	}
	return bucketError(ctx, name, b.catalog.SetPrefixRule(ctx, name, prefix, rule))
}

func (b buckets) DropPrefixRule(ctx context.Context, name, prefix string) error {
	return bucketError(ctx, name, b.catalog.DropPrefixRule(ctx, name, prefix))
}

func bucketError(ctx context.Context, name string, err error) error {
	switch {
	case err == nil, ctx.Err() != nil, errors.Is(err, fence.ErrInvalid):
		return err
	case errors.Is(err, objects.ErrRuleInUse):
		return fmt.Errorf("%w: %w; it holds objects that were written under another rule: remove them first, or use another bucket or prefix", api.ErrConflict, objects.ErrRuleInUse)
	case errors.Is(err, objects.ErrRetained):
		return fmt.Errorf("%w: %w: the retention can be extended, but shortened only while the bucket is empty", api.ErrConflict, objects.ErrRetained)
	case errors.Is(err, objects.ErrNoBucket):
		return fmt.Errorf("%w: there is no bucket %q; name a rule to create it", api.ErrNotFound, name)
	}
	return &leasing.UnavailableError{Part: wire.PartPostgres, Cause: err}
}

// fencedSQL runs the API's statements on the accepted PostgreSQL only.
type fencedSQL struct {
	*fencedsql.Runner

	primary *primary.Primary
}

var _ api.SQL = fencedSQL{}

// Run implements [api.SQL].
func (f fencedSQL) Run(ctx context.Context, grant fence.Grant, statements []wire.Statement) ([]wire.Result, error) {
	ctx, err := f.primary.Changes(ctx)
	if err != nil {
		return nil, err
	}
	return f.Runner.Run(ctx, grant, statements)
}

// relayOf derives the upstream of the PostgreSQL port from the gateway's own database address.
func relayOf(p *primary.Primary, clients *tls.Config, cfg Config) pgwire.Config {
	var hosts []pgwire.Upstream
	for _, h := range p.Hosts() {
		hosts = append(hosts, pgwire.Upstream(h))
	}
	return pgwire.Config{
		Options: cfg.PG,
		Network: hosts[0].Network, Addr: hosts[0].Addr, UpstreamTLS: hosts[0].TLS, UpstreamDirectTLS: hosts[0].DirectTLS, Fallbacks: hosts[1:],
		Suitable: func(ctx context.Context) ([]pgwire.Upstream, error) {
			home, err := p.Current(ctx)
			if err != nil {
				return nil, err
			}
			return []pgwire.Upstream{pgwire.Upstream(home)}, nil
		},
		Database: p.Pool().Config().ConnConfig.Database, DrainTimeout: cfg.DrainTimeout, Logger: cfg.Logger, TLS: clients,
	}
}

// backends are the sessions that PostgreSQL serves.
type backends struct{ pool *pgxpool.Pool }

const sqlEndBackend = `SELECT fence.end_backend($1, $2)`

// end ends a PostgreSQL session whose client is connected to this gateway.
func (b backends) end(ctx context.Context, pid uint32, port int) (ended bool, err error) {
	err = b.pool.QueryRow(ctx, sqlEndBackend, int32(pid), int32(port)).Scan(&ended)
	return ended, err
}
