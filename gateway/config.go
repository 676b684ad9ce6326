package gateway

import (
	"cmp"
	"crypto/rand"
	"crypto/tls"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/gateway/access"
	"github.com/fencegate/fencegate/gateway/api"
	"github.com/fencegate/fencegate/gateway/objects"
	"github.com/fencegate/fencegate/gateway/objects/maintenance"
	"github.com/fencegate/fencegate/gateway/pgwire"
	"github.com/fencegate/fencegate/gateway/s3"
	"github.com/fencegate/fencegate/gateway/s3/credentials"
	"github.com/fencegate/fencegate/internal/option"
	"github.com/fencegate/fencegate/internal/pgtext"
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

// Table declares the options, also those of the parts, with the flags of `fencegate serve`.
func (c *Config) Table() option.Table {
	t := option.Table{
		{Field: "PostgresURL", At: &c.PostgresURL, Required: true, Check: checkPostgresURL, Flag: "postgres-url", Common: true, Help: "the guarded database, as a login in the role fence_gateway (required)"},
		{Field: "SQL URL", At: &c.SQLURL, Check: checkPostgresURL, Flag: "sql-url", Common: true, Help: "the same database, as a login that is only in fence_writer: for SQL over HTTP (default: not offered)"},
		{Field: "SQLConnections", At: &c.SQLConnections, Default: defaultSQLConnections, Check: checkConnections, Flag: "sql-connections", Help: "how many requests of SQL over HTTP may run at once; further ones wait"},
		{Field: "InitNodes", At: &c.InitNodes, Flag: "init", Key: "redis.init", Common: true, Help: "admit Redis nodes that are proven empty at once: for the first start"},
		{Field: "BestEffort", At: &c.BestEffort, Flag: "redis-best-effort", Help: "choose availability over exclusion: admit a Redis node that lost its data, or failed over, at once; two may hold a resource then, and the fence lets only the newest write; the same for all gateways of a database"},
		{Field: "NodeTimeout", At: &c.NodeTimeout, Default: lock.DefaultNodeTimeout, Aliases: map[string]string{"node timeout": ""}, Flag: "node-timeout", Key: "redis.node-timeout", Help: "how long one step waits for a Redis node"},
		{Field: "MaxTTL", At: &c.MaxTTL, Aliases: map[string]string{"max ttl": ""}, Flag: "max-ttl", Help: "longest lease; over Redis at most the nodes' own, which --init sets to it at the first start (default: the nodes', 1m at the first start; 5m with --lock postgres)"},
		{Field: "DefaultTTL", At: &c.DefaultTTL},
		{Field: "keyring", Required: true, Flag: "master-key-file", Common: true, Secret: true, Help: "file with the master keys, the same for all replicas: KEY-ID:64 hexadecimal digits, current first (required)"},
		{Field: "APIListen", At: &c.APIListen, Default: defaultAPIListen, Flag: "api-listen", Common: true, Help: "address of the HTTP API"},
		{Field: "APITLSClientOptional", At: &c.APITLSClientOptional, Needs: []string{"APITLSClientCA"}, Flag: "api-tls-client-optional", Help: "also serve clients of the HTTP API without a certificate: their bearer token says who they are"},
		{Field: "PGListen", At: &c.PGListen, Flag: "pg-listen", Preset: "127.0.0.1:7432", Common: true, Help: "address of the PostgreSQL port"},
		{Field: "PGSocket", At: &c.PGSocket, Needs: []string{"PGListen"}, Flag: "pg-socket", Help: "path of a Unix socket for the PostgreSQL port, beside its address: DIRECTORY/.s.PGSQL.PORT (default: none)"},
		{Field: "S3Listen", At: &c.S3Listen, Flag: "s3-listen", Preset: "127.0.0.1:7480", Common: true, Help: "address of the S3 port"},
		{Field: "MetricsListen", At: &c.MetricsListen, Flag: "metrics-listen", Common: true, Help: "address that serves /metrics alone, without a token, such as 127.0.0.1:9464 (default: only the HTTP API has it)"},
		{Field: "prefixes", At: &c.MetricsPrefixes, Flag: "metrics-prefix", Help: "start of resource names, such as jobs/, by which /metrics counts held leases; the longest match counts (may be repeated, 20 at most; default: none)"},
		{Field: "Principals", Flag: "principals", Common: true, Secret: true, Reload: option.WithPrincipals, Help: "file with the principals and what each may do, read again at SIGHUP; what no rule allows is refused (default: every holder of the bearer token may do everything)"},
		{Field: "AdvertiseHost", At: &c.AdvertiseHost, Flag: "advertise-host", Help: "host name that clients reach the ports by (default: the one that they reached the HTTP API by)"},
		{Field: "PGAdvertise", At: &c.PGAdvertise, Needs: []string{"PGListen"}, Flag: "pg-advertise", Help: "HOST:PORT that clients reach the PostgreSQL port by, such as a balancer's (default: --advertise-host and the port that it listens on)"},
		{Field: "S3Advertise", At: &c.S3Advertise, Needs: []string{"BlobDir"}, Flag: "s3-advertise", Help: "URL that clients reach the S3 port by, such as a balancer's https://s3.example.net (default: --advertise-host, and port and scheme as it listens)"},
		{Field: "BlobDir", At: &c.BlobDir, Flag: "blobs", Key: "s3.blobs", Common: true, Help: "where the blobs go: a folder, or s3://BUCKET/PREFIX?endpoint=URL&region=REGION with credentials in AWS_… variables, see docs/s3.md (default: no S3 port)"},
		{Field: "Buckets", At: &c.Buckets, Needs: []string{"BlobDir", "S3Listen"}, Flag: "bucket", Key: "s3.buckets", Common: true, Help: "bucket and rule, made if missing: NAME=bucket, NAME=prefix:N or NAME=key, a lease each; also NAME=monotone… and NAME=none, see docs/s3.md (may be repeated)"},
		{Field: "SweepEvery", At: &c.SweepEvery, Default: time.Hour},
		{Field: "SweepGrace", At: &c.SweepGrace, Default: 24 * time.Hour, Flag: "sweep-grace", Help: "how long the bytes of versions that are neither current nor kept stay; longer than a backup of the blobs takes"},
		{Field: "SweepRecords", At: &c.SweepRecords, Default: maintenance.DefaultRecordAge, Flag: "sweep-records", Help: "how long the records of writes stay after their bytes have gone; longer than credentials last (24h) and an upload takes"},
		{Field: "SweepRate", At: &c.SweepRate, Flag: "sweep-rate", Help: "how many unused blobs are deleted per second (default: as many as the store can)"},
		{Field: "RetireAfter", At: &c.RetireAfter, Flag: "retire-after", Help: "retire the fence of a resource that was unused for this long: PostgreSQL keeps no row of it (default: never)"},
		{Field: "StartTimeout", At: &c.StartTimeout, Default: 30 * time.Second},
		{Field: "LameDuck", At: &c.LameDuck, Flag: "lame-duck", Help: "how long /readyz fails at a stop before the ports close, so that balancers notice"},
		{Field: "DrainTimeout", At: &c.DrainTimeout, Default: 10 * time.Second, Check: option.Positive, Flag: "drain-timeout", Common: true, Help: "how long a stop waits for transactions, requests and uploads to end"},
	}
	t = slices.Concat(t,
		tlsTable("API", "HTTP API", "of the HTTP API, which then speaks TLS only (default: no TLS)", &c.APITLSCert, &c.APITLSKey, &c.APITLSClientCA),
		tlsTable("PG", "PostgreSQL port", "that the PostgreSQL port offers to clients (default: no TLS for clients)", &c.PGTLSCert, &c.PGTLSKey, &c.PGTLSClientCA),
		tlsTable("S3", "S3 port", "of the S3 port, which then speaks TLS only (default: no TLS)", &c.S3TLSCert, &c.S3TLSKey, &c.S3TLSClientCA),
		c.API.Table().Within("API"), c.PG.Table().Within("PG"), c.S3.Table().Within("S3"))
	t.Need("PGListen", "PG.Rules", "PG.ProxyNetworks")
	return t
}

// tlsTable declares the certificate files of a port.
func tlsTable(port, name, chain string, cert, key, clientCA *string) option.Table {
	flag := strings.ToLower(port) + "-tls-"
	return option.Table{
		{Field: port + "TLSCert", At: cert, With: port + "TLSKey", Flag: flag + "cert", Common: port != "S3", Secret: true, Help: "file with the certificate chain " + chain},
		{Field: port + "TLSKey", At: key, Flag: flag + "key", Common: port != "S3", Secret: true, Help: "file with its key"},
		{Field: port + "TLSClientCA", At: clientCA, Needs: []string{port + "TLSCert"}, Flag: flag + "client-ca", Secret: true, Help: fmt.Sprintf("file with the authorities of clients' certificates: clients of the %s must show one (default: none is asked for)", name)},
	}
}

// checkPostgresURL refuses also a password file that can't be read: pgx connects without a password then.
func checkPostgresURL(value any) string {
	url := value.(string)
	if _, err := pgxpool.ParseConfig(url); url != "" && err != nil {
		return "is not a PostgreSQL address" // err may contain it
	}
	if err := pgtext.CheckPassfile(url); url != "" && err != nil {
		return err.Error()
	}
	return ""
}

func checkConnections(n any) string {
	if n.(int) > math.MaxInt32-1 {
		return "is no such number"
	}
	return option.Positive(n)
}

const defaultAPIListen = "127.0.0.1:7070"

func (c Config) withDefaults() Config {
	c.S3.DrainTimeout = cmp.Or(c.S3.DrainTimeout, c.DrainTimeout)
	c.Table().SetDefaults()
	if len(c.RedisNodes) == 0 {
		c.MaxTTL = cmp.Or(c.MaxTTL, pglock.DefaultMaxTTL)
	}
	c.DefaultTTL = cmp.Or(c.DefaultTTL, min(lock.DefaultTTL, cmp.Or(c.MaxTTL, lock.DefaultTTL)))
	if c.S3.RootAccessKey == "" {
		c.S3.RootAccessKey, c.S3.RootSecretKey = "root-"+rand.Text(), rand.Text()
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return c
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
