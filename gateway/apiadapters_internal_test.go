package gateway

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/fencegate/fencegate/gateway/api"
	"github.com/fencegate/fencegate/gateway/objects"
	"github.com/fencegate/fencegate/gateway/s3/credentials"
	"github.com/fencegate/fencegate/internal/testenv"
	"github.com/fencegate/fencegate/wire"
)

// What the API issues is what the S3 port reads from the credentials.
func TestIssuedCredentialsCarryTheirTermsAndTheirEnd(t *testing.T) {
	t.Parallel()
	keyring, err := credentials.ParseKeyring("k1:" + strings.Repeat("5a", 32))
	if err != nil {
		t.Fatal(err)
	}
	expires := time.Unix(2_000_000_000, 0)
	for want, terms := range map[credentials.Terms]api.CredentialTerms{
		0:                     {},
		credentials.WhileHeld: {WhileHeld: true},
		credentials.OwnKeys:   {OwnKeys: true},
		credentials.ReadOnly:  {ReadOnly: true},
		credentials.EndHeld:   {EndHeld: true},
	} {
		terms.Principal = "worker"
		creds, err := issuer{keyring}.Issue("orders/1", 5, expires, terms)
		if err != nil {
			t.Fatal(err)
		}
		s, err := keyring.Open(creds.SessionToken)
		if err != nil || s.Resource != "orders/1" || s.Token != 5 || s.Terms != want || s.Principal != "worker" || !s.Expires.Equal(expires) || !creds.ExpiresAt.Equal(expires) {
			t.Errorf("%+v: %+v, %v; expires %v", terms, s, err, creds.ExpiresAt)
		}
	}
}

func TestAllSettingsOfABucketAreSetOrNone(t *testing.T) {
	t.Parallel()
	pg := testenv.Postgres(t)
	all := buckets{objects.NewCatalog(objects.NewDatabase(testenv.PoolOf(t, pg.GatewayURL), 0))}
	set := func(want wire.BucketRequest) (bool, error) { return all.EnsureBucket(t.Context(), "orders", want) }
	is := func(rule, keep, writeOnce string) {
		t.Helper()
		if got, err := all.InspectBucket(t.Context(), "orders"); err != nil || got.Rule != rule || got.Keep != keep || got.WriteOnce != writeOnce {
			t.Errorf("%+v, %v; want %s, %s, %s", got, err, rule, keep, writeOnce)
		}
	}
	if created, err := set(wire.BucketRequest{Keep: "3", WriteOnce: "1h"}); created || !errors.Is(err, api.ErrNotFound) {
		t.Errorf("a new bucket without a rule: %v, %v", created, err)
	}
	if created, err := set(wire.BucketRequest{Rule: "key", Keep: "3", WriteOnce: "1h"}); !created || err != nil {
		t.Errorf("a new bucket: %v, %v", created, err)
	}
	is("key", "3", "1h0m0s")
	if created, err := set(wire.BucketRequest{Keep: "all"}); created || err != nil {
		t.Errorf("one setting of a bucket that exists: %v, %v", created, err)
	}
	is("key", "all", "1h0m0s")

	// With an object the last setting is refused, and the others with it.
	if _, err := testenv.PoolOf(t, pg.URL).Exec(t.Context(), `INSERT INTO objects.pointers (bucket, key, version, size, etag, modified_at)
		VALUES ('orders', '1001', gen_random_uuid(), 0, '', now())`); err != nil {
		t.Fatal(err)
	}
	if created, err := set(wire.BucketRequest{Rule: "key", Keep: "5", WriteOnce: "none"}); created || !errors.Is(err, api.ErrConflict) {
		t.Errorf("a retention that is shortened: %v, %v", created, err)
	}
	is("key", "all", "1h0m0s")
	if created, err := set(wire.BucketRequest{Rule: "bucket", Keep: "5", WriteOnce: "2h"}); created || !errors.Is(err, api.ErrConflict) {
		t.Errorf("a rule that is in use: %v, %v", created, err)
	}
	is("key", "all", "1h0m0s")
}
