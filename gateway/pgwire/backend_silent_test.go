//go:build unix

package pgwire_test

import (
	"crypto/tls"
	"io"
	"net"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/fencegate/fencegate/gateway/pgwire"
)

func TestAStopDoesNotWaitForAPostgreSQLThatSaysNothing(t *testing.T) {
	t.Parallel()
	cancel := &pgproto3.CancelRequest{ProcessID: 1, SecretKey: []byte{1, 2, 3, 4}}
	for name, c := range map[string]struct {
		opening pgproto3.FrontendMessage
		tls     *tls.Config
	}{
		"a login":                   {startup, new(tls.Config)},
		"a cancel request":          {cancel, nil},
		"a cancel request with TLS": {cancel, new(tls.Config)},
	} {
		asked, over := make(chan struct{}), make(chan struct{})
		r := start(t, "tcp", upstream(t, func(conn net.Conn) {
			_, _ = io.ReadFull(conn, make([]byte, 8)) // the request for TLS, or the beginning of a cancel request
			close(asked)
			<-over
		}), "shop", func(cfg *pgwire.Config) {
			cfg.UpstreamTLS, cfg.DialTimeout, cfg.DrainTimeout = c.tls, time.Minute, 100*time.Millisecond
		})
		send(t, r.dial(), c.opening)
		<-asked
		began := time.Now()
		r.stop()
		if took := time.Since(began); took > 30*time.Second {
			t.Errorf("%s: stopping took %v", name, took)
		}
		close(over)
	}
}
