package pgtext_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencegate/fencegate/internal/pgtext"
	"github.com/fencegate/fencegate/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// connect returns the error of a failed connection. Names ending in .invalid do not resolve.
func connect(t *testing.T, address string) error {
	t.Helper()
	config, err := pgx.ParseConfig(address)
	if err != nil {
		t.Fatal(err)
	}
	lookup := config.LookupFunc
	config.LookupFunc = func(ctx context.Context, host string) ([]string, error) {
		if strings.HasSuffix(host, ".invalid") {
			return nil, &net.DNSError{Err: "no such host", Name: host}
		}
		return lookup(ctx, host)
	}
	conn, err := pgx.ConnectConfig(t.Context(), config)
	if err == nil {
		_ = conn.Close(t.Context())
		t.Fatalf("%s: there is a connection", address)
	}
	return err
}

// Each address and each reason is listed once, whatever pgx tried.
func TestAFailedConnectionIsSaidInOneLine(t *testing.T) {
	t.Parallel()
	silent, err := net.Listen("tcp", "127.0.0.1:0") // accepts, and sends nothing
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = silent.Close() }()
	mute := silent.Addr().String()
	const head = `no connection to PostgreSQL as user "u" to database "d": `
	for address, want := range map[string]string{
		"postgres://u:geheim@127.0.0.1:1/d":                        head + "127.0.0.1:1: connection refused",
		"postgres://u:geheim@127.0.0.1:1/d?sslmode=disable":        head + "127.0.0.1:1: connection refused",
		"postgres://u:geheim@127.0.0.1:1,127.0.0.1:2/d":            head + "127.0.0.1:1, 127.0.0.1:2: connection refused",
		"postgres://u:geheim@/d?host=/nowhere&port=7":              head + "/nowhere/.s.PGSQL.7: no such file or directory",
		"postgres://u:geheim@" + mute + "/d?connect_timeout=1":     head + mute + ": no answer in time",
		"postgres://u:geheim@no.such.host.invalid/d":               head + "lookup no.such.host.invalid: no such host",
		"postgres://u:geheim@127.0.0.1:1,no.such.host.invalid:5/d": head + "lookup no.such.host.invalid: no such host; 127.0.0.1:1: connection refused",
	} {
		text := pgtext.Of(connect(t, address))
		if text != want {
			t.Errorf("%s: %s\nwant %s", address, text, want)
		}
	}
}

func TestANameIsSaidBesideItsAddress(t *testing.T) {
	t.Parallel()
	text := pgtext.Of(connect(t, "postgres://u@localhost:1/d"))
	if !strings.Contains(text, "127.0.0.1:1 (localhost)") || strings.Count(text, "connection refused") != 1 {
		t.Error(text)
	}
}

func TestPostgreSQLsOwnWordsStay(t *testing.T) {
	t.Parallel()
	pg := testenv.Postgres(t)
	config, err := pgx.ParseConfig(pg.URL)
	if err != nil {
		t.Fatal(err)
	}
	config.Database = "nowhere"
	_, err = pgx.ConnectConfig(t.Context(), config)
	want := fmt.Sprintf(`: %s:%d: FATAL: database "nowhere" does not exist (SQLSTATE 3D000)`, config.Host, config.Port)
	if text := pgtext.Of(err); !strings.HasSuffix(text, want) || strings.Count(text, "does not exist") != 1 {
		t.Errorf("%s, want …%s", text, want)
	}
}

func TestWhatIsAroundAConnectionsErrorStays(t *testing.T) {
	t.Parallel()
	failed := connect(t, "postgres://u@127.0.0.1:1/d")
	for err, want := range map[error]string{
		fmt.Errorf("list the fences: %w", failed):              `list the fences: no connection to PostgreSQL as user "u" to database "d": 127.0.0.1:1: connection refused`,
		errors.Join(errors.New("before"), failed):              "before\nno connection to PostgreSQL",
		errors.New("another error"):                            "another error",
		&pgconn.PgError{Severity: "ERROR", Message: "refused"}: "ERROR: refused",
	} {
		if text := pgtext.Of(err); !strings.HasPrefix(text, want) {
			t.Errorf("%s, want %s", text, want)
		}
	}
}

// If a server without TLS refuses a login, its own reason is reported, and not the lack of TLS.
func TestThatTLSWasTriedFirstIsNoReason(t *testing.T) {
	t.Parallel()
	pg := testenv.Postgres(t)
	u, err := url.Parse(pg.URL)
	if err != nil {
		t.Fatal(err)
	}
	u.Path = "/nowhere"
	for mode, want := range map[string]string{"prefer": `database "nowhere" does not exist`, "require": "server refused TLS connection"} {
		u.RawQuery = "sslmode=" + mode
		text := pgtext.Of(connect(t, u.String()))
		if !strings.Contains(text, want) || mode == "prefer" && strings.Contains(text, "TLS") {
			t.Errorf("%s: %s", mode, text)
		}
	}
}
