package gateway

import (
	"crypto/rand"
	"crypto/tls"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/gateway/access"
	"github.com/fencegate/fencegate/gateway/api"
	"github.com/fencegate/fencegate/gateway/objects"
	"github.com/fencegate/fencegate/gateway/pgwire"
	"github.com/fencegate/fencegate/gateway/s3"
	"github.com/fencegate/fencegate/gateway/s3/credentials"
	"github.com/fencegate/fencegate/lock"
	"github.com/fencegate/fencegate/lock/lockmetrics"
)

// Config says what a [Gateway] serves and where. It is validated once, by [New].
type Config struct {
	// PostgresURL is the guarded database, as a login in the role fence_gateway.
	// Required. The PostgreSQL port relays to the same host, port and database,
	// with TLS where the address asks for sslmode require or stricter.
	PostgresURL string
	// SQLURL is the same database, as a login in fence_writer only, for /v1/sql.
	// Defaults to "": that path answers 501.
	SQLURL string
	// SQLConnections is how many requests of /v1/sql may run at once; more wait for a place. Defaults to 8.
	SQLConnections int

	// RedisNodes are the independent nodes of the lock: 1, 3, 5, … Required without PostgresLeases and Leases.
	RedisNodes []lock.Node
	// PostgresLeases lets PostgreSQL itself give the leases, without RedisNodes: see [pglock]. Defaults to false.
	PostgresLeases bool
	// Leases opens another source of leases than these two, which arms with the
	// given Armer; [Gateway.Stop] closes it. Defaults to nil: RedisNodes are it.
	Leases func(leasing.Armer) (leasing.Source, error)
	// LeaseSource is the name of what Leases opens, for the database: a gateway of another source grants nothing there.
	// "etcd", "zookeeper", "kubernetes" or "other". Defaults to "other".
	LeaseSource string
	// InitNodes admits nodes that are proven empty when the gateway starts: for the
	// first start of a group, and harmless later. Nodes that are away are admitted once they
	// are there; until then leases are refused, and the rest is served. Defaults to false.
	InitNodes bool
	// EmbeddedNodes says that the nodes live and die with every lease on them, in
	// this process, so they need no quarantine. Defaults to false.
	EmbeddedNodes bool
	// BestEffort has lost nodes admitted at once, without a quarantine: two may hold a resource then, and the fence lets only the
	// newest write. The same for all gateways of a group; see [lock.Config]. Needs RedisNodes. Defaults to false.
	BestEffort bool
	// NodeTimeout bounds how long one step waits for a node. Defaults to
	// [lock.DefaultNodeTimeout].
	NodeTimeout time.Duration
	// KeyPrefix starts the name of each Redis key. Defaults to [lock.DefaultKeyPrefix].
	KeyPrefix string
	// DatabaseKeys has the keys begin with the database's own prefix, see [pgfence.KeyPrefix], so that the gateways of several
	// databases may share RedisNodes. A gateway that starts while PostgreSQL is away grants no leases, and renews none, before it
	// has learned it. Instead of KeyPrefix. Defaults to false.
	DatabaseKeys bool
	// MaxTTL is the longest lease; the same for all gateways of a group. Defaults to
	// [lock.DefaultMaxTTL].
	MaxTTL time.Duration
	// DefaultTTL is a lease's length where a request names none. Defaults to
	// [lock.DefaultTTL], or MaxTTL where that is shorter.
	DefaultTTL time.Duration

	// MasterKey is the keyring's text: "id:hex" pairs between commas or white space,
	// 32 bytes or more each, the current one first; the same for all gateways of a
	// group. Lease handles and S3 credentials are authenticated with it. Required.
	MasterKey string
	// APIListen is the address of the HTTP API. Defaults to "127.0.0.1:7070".
	APIListen string
	// APITLSCert, APITLSKey and APITLSClientCA are to the HTTP API what those of the
	// PostgreSQL port are to it; with a certificate it speaks TLS only. Default to "".
	APITLSCert, APITLSKey, APITLSClientCA string
	// APITLSClientOptional has the HTTP API serve clients that show no certificate, too: Principals
	// or the bearer token say who they are. One that is shown is verified. Needs APITLSClientCA.
	// Defaults to false.
	APITLSClientOptional bool
	// PGListen is the address of the PostgreSQL port. Defaults to "": none.
	PGListen string
	// PGSocket is the path of a Unix socket that the PostgreSQL port is reached by, too.
	// libpq looks for DIRECTORY/.s.PGSQL.PORT. Defaults to "": none. Needs PGListen.
	PGSocket string
	// PGTLSCert and PGTLSKey are files, PEM, with the certificate chain and the key
	// that the PostgreSQL port offers to clients that ask for TLS. They may be
	// replaced at any time: new ones count from the next connection on, and ones
	// that can't be used are reported and change nothing. Where the port reaches PostgreSQL by TLS too, only PostgreSQL's own pair lets clients use SCRAM
	// with channel binding. Default to "": no TLS for clients.
	PGTLSCert, PGTLSKey string
	// PGTLSClientCA is a file, PEM, with the authorities of clients' certificates.
	// With it the PostgreSQL port refuses clients without such a certificate, and plain
	// connections. Defaults to "": none is asked for.
	PGTLSClientCA string
	// S3Listen is the address of the S3 port. Defaults to "": none. Needs BlobDir.
	S3Listen string
	// S3TLSCert, S3TLSKey and S3TLSClientCA are to the S3 port what those of the
	// PostgreSQL port are to it; with a certificate it speaks TLS only. Default to "".
	S3TLSCert, S3TLSKey, S3TLSClientCA string

	// MetricsListen is the address of a listener that serves /metrics and nothing else, to any client: no token,
	// no TLS. Defaults to "": none; the HTTP API's own path asks for a token as its others do.
	MetricsListen string

	// MetricsPrefixes are beginnings of resources' names, at most 20, by which /metrics tells held leases. Defaults to none.
	MetricsPrefixes []string

	// API, PG and S3 are what the parts let users choose. Off loopback an API without a
	// bearer token gets one, see [Gateway.GeneratedToken]. Root credentials of the S3
	// port default to random ones that nobody knows.
	API api.Options
	PG  pgwire.Options
	S3  s3.Options

	// Principals say who may do what. Defaults to nil: a client with the API's bearer token may do
	// everything. With them that token counts for nothing.
	Principals *access.Principals

	// AdvertiseHost is the host that clients reach the ports by. Defaults to "": the
	// listener's own, or where that is a wildcard the one that the client used for
	// the API.
	AdvertiseHost string
	// PGAdvertise is where clients reach the PostgreSQL port, HOST:PORT, as behind a balancer.
	// Defaults to "": AdvertiseHost and the listener's port.
	PGAdvertise string
	// S3Advertise is the URL by which clients reach the S3 port, with the balancer's scheme.
	// Defaults to "": AdvertiseHost, the listener's port and its scheme.
	S3Advertise string

	// BlobDir is where the blobs go: a folder, or s3://BUCKET/PREFIX?endpoint=URL&region=R
	// with credentials from the environment; see [blob.OpenAt]. Required with S3Listen.
	BlobDir string
	// Buckets are made where missing when the gateway starts: name → rule, "bucket",
	// "prefix:n" or "key". One that exists keeps its rule; a warning says so where
	// that is another. Defaults to none.
	Buckets map[string]string
	// SweepEvery is how often the bytes of given-up uploads and superseded versions
	// are deleted, while the gateway has an S3 port; more than 0. Several gateways may
	// sweep the same blobs. Defaults to 1 h.
	SweepEvery time.Duration
	// SweepGrace is how long the bytes of versions that are neither current nor kept
	// stay: readers, restores and backups need them. Defaults to 24 h.
	SweepGrace time.Duration
	// SweepRecords is how long the records of writes stay after their bytes have gone:
	// who wrote what, and what tells a repeated request that it was carried out. Not
	// less than API.MaxLease, for as long as which credentials last, and the time of an
	// upload. Defaults to 720 h.
	SweepRecords time.Duration
	// SweepRate is how many blobs a sweep deletes in a second. Defaults to 0: as fast
	// as the store does it.
	SweepRate int

	// RetireAfter is how long a resource is not used until its fence retires, so that PostgreSQL keeps no row of it; see
	// [pgfence.Fence.Retire]. Only where every source of tokens of this database goes above what the fence recorded, as
	// gateways do, and all of them have the same nodes and key prefix. Defaults to 0: never.
	RetireAfter time.Duration

	// StartTimeout bounds how long [Gateway.Start] waits for PostgreSQL, for what Buckets
	// asks, and for busy Redis nodes, for what InitNodes asks. Defaults to 30 s.
	StartTimeout time.Duration
	// LameDuck is how long a stop goes on as before while /readyz fails, so that balancers send nobody new. Then
	// the PostgreSQL and S3 ports close and drain, and after that the API. Defaults to 0.
	LameDuck time.Duration
	// DrainTimeout bounds how long a stop waits for sessions, requests and uploads.
	// Defaults to 10 s.
	DrainTimeout time.Duration

	// Version is told to clients. Defaults to "".
	Version string
	// Logger receives what happens; never a secret. Defaults to slog.Default().
	Logger *slog.Logger
}

func (c Config) withDefaults() Config {
	orDefault(&c.APIListen, "127.0.0.1:7070")
	orDefault(&c.MaxTTL, lock.DefaultMaxTTL)
	orDefault(&c.DefaultTTL, min(lock.DefaultTTL, c.MaxTTL))
	orDefault(&c.StartTimeout, 30*time.Second)
	orDefault(&c.DrainTimeout, 10*time.Second)
	orDefault(&c.SweepEvery, time.Hour)
	orDefault(&c.S3.DrainTimeout, c.DrainTimeout)
	c.S3 = c.S3.WithDefaults()
	if c.S3.RootAccessKey == "" {
		c.S3.RootAccessKey, c.S3.RootSecretKey = "root-"+rand.Text(), rand.Text()
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return c
}

func orDefault[T comparable](value *T, fallback T) {
	var zero T
	if *value == zero {
		*value = fallback
	}
}

// parsed is what validation reads from the configuration.
type parsed struct {
	pool    *pgxpool.Config
	current string            // id of the current master key
	masters map[string][]byte // by id
	keyring *credentials.Keyring
	buckets map[string]objects.Rule

	prefixes lockmetrics.Prefixes

	pgAdvertise address
	// nil: none for clients
	apiTLS, pgTLS, s3TLS *tls.Config
}
