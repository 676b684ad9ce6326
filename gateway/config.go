package gateway

import (
	"cmp"
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
	"github.com/fencegate/fencegate/lock/pglock"
)

// Config says what a [Gateway] serves and where. [New] validates it once.
type Config struct {
	// PostgresURL is the guarded database, as a login in the role fence_gateway.
	// Required. The PostgreSQL port relays to the same host, port and database,
	// with TLS where the address asks for sslmode require or stricter.
	PostgresURL string
	// SQLURL is the same database, as a login in fence_writer only, for /v1/sql.
	// Defaults to "": that path answers 501.
	SQLURL string
	// SQLConnections is how many requests of /v1/sql run at once; more wait for a connection. Defaults to 8.
	SQLConnections int

	// RedisNodes are the independent nodes of the lock: 1, 3, 5, … Required without PostgresLeases and Leases.
	RedisNodes []lock.Node
	// PostgresLeases makes PostgreSQL itself grant the leases, without RedisNodes: see [pglock]. Defaults to false.
	PostgresLeases bool
	// Leases opens another source of leases, which arms with the given Armer. [Gateway.Stop] closes it. Defaults to
	// nil: RedisNodes or PostgreSQL grant the leases.
	Leases func(leasing.Armer) (leasing.Source, error)
	// LeaseSource is the name under which the database records the source that Leases opens. A gateway with another
	// source grants nothing on that database. "etcd", "zookeeper", "kubernetes" or "other". Defaults to "other".
	LeaseSource string
	// InitNodes admits nodes that are proven empty when the gateway starts: for the first start of a group, and
	// harmless later. Nodes that are away are admitted once they are back; until then the gateway refuses leases and
	// serves the rest. Defaults to false.
	InitNodes bool
	// EmbeddedNodes says that the nodes run in this process, so that all leases on them end with them and they need no
	// quarantine. Defaults to false.
	EmbeddedNodes bool
	// BestEffort admits nodes that lost their data at once, without a quarantine. Two clients may then hold a resource,
	// and the fence admits only the newer one's writes. The same for all gateways of a group; see [lock.Config]. Needs
	// RedisNodes. Defaults to false.
	BestEffort bool
	// NodeTimeout bounds how long one step waits for a node. Defaults to
	// [lock.DefaultNodeTimeout].
	NodeTimeout time.Duration
	// KeyPrefix starts the name of each Redis key. Defaults to [lock.DefaultKeyPrefix].
	KeyPrefix string
	// DatabaseKeys starts the keys with the database's own prefix, see [pgfence.KeyPrefix], so that the gateways of
	// several databases can share RedisNodes. A gateway that starts while PostgreSQL is away grants and extends no
	// leases until it has read the prefix. Excludes KeyPrefix. Defaults to false.
	DatabaseKeys bool
	// MaxTTL is the longest lease. Over Redis nodes it is lock.Config.MaxTTL and defaults to what the nodes grant;
	// otherwise it defaults to [pglock.DefaultMaxTTL].
	MaxTTL time.Duration
	// DefaultTTL is a lease's TTL where a request names none. Defaults to [lock.DefaultTTL], or MaxTTL where that is
	// shorter.
	DefaultTTL time.Duration

	// MasterKey is the keyring's text: "id:hex" pairs separated by commas or white space, 32 bytes or more each, the
	// current one first; the same for all gateways of a group. It authenticates lease handles and S3 credentials.
	// Required.
	MasterKey string
	// APIListen is the address of the HTTP API. Defaults to "127.0.0.1:7070".
	APIListen string
	// APITLSCert, APITLSKey and APITLSClientCA mean for the HTTP API what PGTLSCert, PGTLSKey and PGTLSClientCA mean
	// for the PostgreSQL port. With a certificate the API speaks TLS only. Default to "".
	APITLSCert, APITLSKey, APITLSClientCA string
	// APITLSClientOptional makes the HTTP API also serve clients that show no certificate; Principals or the bearer
	// token identify them. A certificate that is shown is verified. Needs APITLSClientCA. Defaults to false.
	APITLSClientOptional bool
	// PGListen is the address of the PostgreSQL port. Defaults to "": none.
	PGListen string
	// PGSocket is the path of a Unix socket on which the PostgreSQL port listens, too. libpq looks for
	// DIRECTORY/.s.PGSQL.PORT. Defaults to "": none. Needs PGListen.
	PGSocket string
	// PGTLSCert and PGTLSKey are PEM files with the certificate chain and the key that the PostgreSQL port offers to
	// clients that ask for TLS. They may be replaced at any time: new files take effect with the next connection; files
	// that cannot be used are logged and change nothing. Where the gateway reaches PostgreSQL by TLS, too, clients can
	// use SCRAM with channel binding only if this is PostgreSQL's own pair. Default to "": no TLS for clients.
	PGTLSCert, PGTLSKey string
	// PGTLSClientCA is a PEM file with the authorities of clients' certificates. With it the PostgreSQL port refuses
	// clients without such a certificate, and plain connections. Defaults to "": clients need no certificate.
	PGTLSClientCA string
	// S3Listen is the address of the S3 port. Defaults to "": none. Needs BlobDir.
	S3Listen string
	// S3TLSCert, S3TLSKey and S3TLSClientCA mean for the S3 port what PGTLSCert, PGTLSKey and PGTLSClientCA mean for
	// the PostgreSQL port. With a certificate the S3 port speaks TLS only. Default to "".
	S3TLSCert, S3TLSKey, S3TLSClientCA string

	// MetricsListen is the address of a listener that serves /metrics and nothing else, without a token or TLS.
	// Defaults to "": none. The HTTP API serves /metrics, too, and asks for a token there.
	MetricsListen string

	// MetricsPrefixes are up to 20 prefixes of resource names by which /metrics counts held leases. Defaults to none.
	MetricsPrefixes []string

	// API, PG and S3 are the options of the parts. An API that listens off loopback without a bearer token gets a
	// generated one, see [Gateway.GeneratedToken]. Root credentials of the S3 port default to random ones that are not
	// shown anywhere.
	API api.Options
	PG  pgwire.Options
	S3  s3.Options

	// Principals say who may do what. Defaults to nil: a client with the API's bearer token may do everything. With
	// Principals that token grants nothing.
	Principals *access.Principals

	// AdvertiseHost is the host by which clients reach the ports. Defaults to "": the listener's own host, or for a
	// wildcard the host by which the client reached the API.
	AdvertiseHost string
	// PGAdvertise is the HOST:PORT by which clients reach the PostgreSQL port, for example behind a balancer. Defaults
	// to "": AdvertiseHost and the listener's port.
	PGAdvertise string
	// S3Advertise is the URL by which clients reach the S3 port, with the balancer's scheme.
	// Defaults to "": AdvertiseHost, the listener's port and its scheme.
	S3Advertise string

	// BlobDir is where the blobs are stored: a folder, or s3://BUCKET/PREFIX?endpoint=URL&region=R with credentials
	// from the environment; see [blob.OpenAt]. Required with S3Listen.
	BlobDir string
	// Buckets are created at the start if missing: name → rule, "bucket", "prefix:n" or "key". An existing bucket keeps
	// its rule; the gateway logs a warning if that differs. Defaults to none.
	Buckets map[string]string
	// SweepEvery is how often the gateway deletes the bytes of abandoned uploads and superseded versions, if it has an
	// S3 port; more than 0. Several gateways may sweep the same blobs. Defaults to 1 h.
	SweepEvery time.Duration
	// SweepGrace is how long the bytes of versions that are neither current nor kept stay for readers, restores and
	// backups. Defaults to 24 h.
	SweepGrace time.Duration
	// SweepRecords is how long the records of writes stay after their bytes are deleted. They say who wrote what, and
	// answer a repeated request. Not less than the life of S3 credentials (API.MaxLease) plus the time of an upload.
	// Defaults to 720 h.
	SweepRecords time.Duration
	// SweepRate is how many blobs a sweep deletes per second. Defaults to 0: no limit.
	SweepRate int

	// RetireAfter is how long a resource is unused before its fence retires and PostgreSQL drops its row; see
	// [pgfence.Fence.Retire]. Set it only if every source of tokens of this database continues above the recorded
	// fence, as gateways do, and all gateways have the same nodes and key prefix. Defaults to 0: never.
	RetireAfter time.Duration

	// StartTimeout bounds how long [Gateway.Start] waits for PostgreSQL, for the creation of Buckets, and, with
	// InitNodes, for busy Redis nodes. Defaults to 30 s.
	StartTimeout time.Duration
	// LameDuck is how long a stopping gateway keeps serving while /readyz fails, so that balancers stop sending
	// clients. Then the PostgreSQL and S3 ports close and drain, and after them the API. Defaults to 0.
	LameDuck time.Duration
	// DrainTimeout bounds how long a stop waits for sessions, requests and uploads.
	// Defaults to 10 s.
	DrainTimeout time.Duration

	// Version is the version that clients see. Defaults to "".
	Version string
	// Logger receives events, without secrets. Defaults to slog.Default().
	Logger *slog.Logger
}

const defaultAPIListen = "127.0.0.1:7070"

func (c Config) withDefaults() Config {
	orDefault(&c.APIListen, defaultAPIListen)
	if len(c.RedisNodes) == 0 {
		orDefault(&c.MaxTTL, pglock.DefaultMaxTTL)
	}
	orDefault(&c.DefaultTTL, min(lock.DefaultTTL, cmp.Or(c.MaxTTL, lock.DefaultTTL)))
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

// parsed holds what validation parses from the configuration.
type parsed struct {
	pool    *pgxpool.Config
	current string            // id of the current master key
	masters map[string][]byte // by id
	keyring *credentials.Keyring
	buckets map[string]objects.Rule

	prefixes lockmetrics.Prefixes

	pgAdvertise address
	// nil: no TLS for clients
	apiTLS, pgTLS, s3TLS *tls.Config
}
