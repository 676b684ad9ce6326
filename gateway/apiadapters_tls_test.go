//go:build unix

package gateway

import (
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fencegate/fencegate/gateway/pgwire"
	"github.com/fencegate/fencegate/internal/pgserver"
	"github.com/fencegate/fencegate/internal/testenv"
)

// hba admits the superuser with and without TLS, ada by SCRAM, and certified only by her certificate.
const hba = `
host    all anyone    all trust
hostssl all certified all cert
hostssl all twofold   all scram-sha-256 clientcert=verify-ca
hostssl all ada       all scram-sha-256
hostnossl all ada     all scram-sha-256
host    all postgres  all scram-sha-256
host    replication postgres all scram-sha-256
`

// tlsServer is a PostgreSQL with TLS, and the files of its certificate.
type tlsServer struct {
	*pgserver.Server

	ca        *authority
	cert, key string
}

func newTLSServer(t *testing.T) *tlsServer {
	t.Helper()
	dir := testenv.ServerDir(t)
	s := &tlsServer{Server: ownServer(t, dir), ca: newAuthority(t)}
	s.cert, s.key = s.ca.issue("localhost")
	logins(t, s.Server, "anyone", "certified", "twofold", "ada")
	secured(t, s.Server, dir, s.ca, s.cert, s.key, hba)
	return s
}

// address returns the database's address for the gateway, with one of the server's names.
func (s *tlsServer) address(host, options string) string {
	return "postgres://postgres@" + net.JoinHostPort(host, portOf(s.Addr())) + "/postgres?" + options
}

func (s *tlsServer) verified() string { return "sslmode=verify-full&sslrootcert=" + s.ca.file }

func TestEverySSLModeTowardsARealServer(t *testing.T) {
	t.Parallel()
	s, other := newTLSServer(t), newAuthority(t)
	for _, c := range []struct {
		host, options, want string // plain, encrypted, or what the log says
	}{
		{"localhost", "sslmode=disable", "plain"},
		{"localhost", "sslmode=allow", "plain"},
		{"localhost", "sslmode=prefer", "plain"},
		{"localhost", "sslmode=require", "encrypted"},
		{"127.0.0.1", "sslmode=require", "encrypted"},
		{"localhost", "sslmode=verify-ca&sslrootcert=" + s.ca.file, "encrypted"},
		{"127.0.0.1", "sslmode=verify-ca&sslrootcert=" + s.ca.file, "encrypted"},
		{"localhost", "sslmode=verify-ca&sslrootcert=" + other.file, "unknown authority"},
		{"localhost", "sslmode=verify-full&sslrootcert=" + s.ca.file, "encrypted"},
		{"127.0.0.1", "sslmode=verify-full&sslrootcert=" + s.ca.file, "cannot validate certificate for 127.0.0.1"},
		{"localhost", "sslmode=verify-full&sslrootcert=" + other.file, "unknown authority"},
		{"localhost", "sslmode=require&sslrootcert=" + other.file, "unknown authority"}, // libpq's rule: as verify-ca
	} {
		p := openPort(t, s.address(c.host, c.options), nil)
		got, err := psql(t, s.Server, p.url("anyone", "sslmode=disable"), "SELECT CASE WHEN ssl THEN 'encrypted' ELSE 'plain' END FROM pg_stat_ssl WHERE pid = pg_backend_pid()")
		switch {
		case c.want == "plain" || c.want == "encrypted":
			if err != nil || got != c.want {
				t.Errorf("%s %s: %q, %v; want %s", c.host, c.options, got, err, c.want)
			}
		case err == nil || !strings.Contains(p.log.String(), c.want) || !strings.Contains(got, "cannot reach PostgreSQL"):
			t.Errorf("%s %s: %q, %v; want the log to say %q:\n%s", c.host, c.options, got, err, c.want, p.log)
		}
	}
}

// clientTLS returns the TLS configuration for the port's clients.
func clientTLS(t *testing.T, files pgwire.TLSFiles) *tls.Config {
	t.Helper()
	cfg, err := files.Load(slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

// TestSCRAMPassesAsFarAsChannelBindingAllows tries each combination with libpq and pgx, and checks that the message at
// the start is right.
func TestSCRAMPassesAsFarAsChannelBindingAllows(t *testing.T) {
	t.Parallel()
	s := newTLSServer(t)
	cert, key := s.ca.issue("localhost")
	own, other := clientTLS(t, pgwire.TLSFiles{Cert: s.cert, Key: s.key}), clientTLS(t, pgwire.TLSFiles{Cert: cert, Key: key})
	const works = "1"
	for _, c := range []struct {
		name     string
		upstream string
		clients  *tls.Config
		disable  string // libpq's result with channel_binding=disable
		prefer   string
		require  string
		start    string // the message at the start
	}{
		{"plain on both legs", "sslmode=disable", nil, works, works, "channel binding required", ""},
		{"TLS for clients only", "sslmode=disable", other, works, works, "channel binding is required", "channel_binding=require"},
		{
			"TLS to PostgreSQL only", s.verified(), nil,
			"over a non-SSL connection", "over a non-SSL connection", "channel binding required", "SCRAM-SHA-256-PLUS",
		},
		{"two certificates", s.verified(), other, works, "SCRAM channel binding check failed", "SCRAM channel binding check failed", "channel_binding=disable"},
		{"PostgreSQL's own certificate", s.verified(), own, works, works, works, ""},
	} {
		p := openPort(t, s.address("localhost", c.upstream), c.clients)
		for binding, want := range map[string]string{"disable": c.disable, "prefer": c.prefer, "require": c.require} {
			options := "channel_binding=" + binding + "&sslmode=disable"
			if c.clients != nil {
				options = "channel_binding=" + binding + "&" + s.verified()
			}
			got, err := psql(t, s.Server, p.url("ada", options), "SELECT 1")
			if (err == nil) != (want == works) || !strings.Contains(got, want) {
				t.Errorf("%s, %s: %q, %v; want %q", c.name, binding, got, err, want)
			}
			conn, err := pgx.Connect(t.Context(), p.url("ada", options))
			if err == nil {
				_ = conn.Close(t.Context())
			}
			if libpqOnly := strings.Contains(want, "over a non-SSL connection"); (err == nil) != (want == works || libpqOnly) {
				t.Errorf("%s, %s: pgx: %v; want %q", c.name, binding, err, want)
			}
		}
		said := fmt.Sprint(p.CheckChannelBinding(t.Context())) + p.log.String()
		if c.start != "" && !strings.Contains(said, c.start) || c.start == "" && !strings.HasPrefix(said, "<nil>") {
			t.Errorf("%s: at the start: %s; want %q", c.name, said, c.start)
		}
		p.stop()
		if refused := strings.Contains(c.prefer, "check failed"); refused != strings.Contains(p.log.String(), "is not PostgreSQL's own") {
			t.Errorf("%s: the log of refused logins:\n%s", c.name, p.log)
		}
	}
}

func TestClientsCertificatesWithARealServer(t *testing.T) {
	t.Parallel()
	s := newTLSServer(t)
	cert, key := s.ca.issue("certified")
	shown := "&sslcert=" + cert + "&sslkey=" + key
	direct := s.address("localhost", s.verified()+shown)
	// Checks the server's configuration.
	for user, want := range map[string]string{"certified": "1", "twofold": "no password"} {
		if got, _ := psql(t, s.Server, strings.Replace(direct, "postgres@", user+"@", 1), "SELECT 1"); !strings.Contains(got, want) {
			t.Fatalf("directly, %s: %q; want %q", user, got, want)
		}
	}
	own := clientTLS(t, pgwire.TLSFiles{Cert: s.cert, Key: s.key, ClientCA: s.ca.file})
	// The gateway's own certificate must not let clients log in as the role that it names.
	p := openPort(t, s.address("localhost", s.verified()+shown), own)
	for _, user := range []string{"certified", "twofold"} {
		got, err := psql(t, s.Server, p.url(user, s.verified()+shown), "SELECT 1")
		if err == nil || !strings.Contains(got, "requires a valid client certificate") {
			t.Errorf("%s: %q, %v; want PostgreSQL's refusal", user, got, err)
		}
	}
	testenv.Eventually(t, "the log says why, and what to do", func() bool {
		return strings.Count(p.log.String(), "can't pass a relay: where pg_hba.conf has the method cert") == 2
	})
	if got, err := psql(t, s.Server, p.url("ada", s.verified()+shown), "SELECT 1"); err != nil || got != "1" {
		t.Errorf("by SCRAM, with a certificate for the gateway: %q, %v", got, err)
	}
	if got, err := psql(t, s.Server, p.url("ada", s.verified()+"&sslcert=none&sslkey=none"), "SELECT 1"); err == nil || !strings.Contains(got, "requires a valid client certificate") {
		t.Errorf("without a certificate for the gateway: %q, %v", got, err)
	}
}
