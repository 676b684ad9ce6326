//go:build unix

package pgwire_test

import (
	"encoding/binary"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/fencegate/fencegate/gateway/pgwire"
	"github.com/fencegate/fencegate/internal/testenv"
)

const proxySignature = "\r\n\r\n\x00\r\nQUIT\n"

// proxyHeader returns a header of the PROXY protocol, version 2.
func proxyHeader(command, family byte, body string) string {
	head := append([]byte(proxySignature), command, family)
	return string(binary.BigEndian.AppendUint16(head, uint16(len(body)))) + body
}

func behindProxy(c *pgwire.Config) {
	c.ProxyNetworks = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}
}

// letsIn is a PostgreSQL that admits every login.
func letsIn(t *testing.T) string {
	t.Helper()
	return upstream(t, func(conn net.Conn) {
		readStartup(conn)
		_, _ = conn.Write(encode(authOK, ready))
		_, _ = io.Copy(io.Discard, conn)
	})
}

func TestAProxySaysWhereTheClientIs(t *testing.T) {
	t.Parallel()
	const ports = "\x30\x39\x1b\x58" // 12345, 7000
	v6 := netip.MustParseAddr("2001:db8::7").As16()
	for name, c := range map[string]struct{ header, want string }{
		"IPv4":             {proxyHeader(0x21, 0x11, "\xc0\x00\x02\x07\x7f\x00\x00\x01"+ports), "192.0.2.7:12345"},
		"IPv6":             {proxyHeader(0x21, 0x21, string(v6[:])+strings.Repeat("\x00", 16)+ports), "[2001:db8::7]:12345"},
		"with extensions":  {proxyHeader(0x21, 0x11, "\xc0\x00\x02\x07\x7f\x00\x00\x01"+ports+"\x04\x00\x01x"), "192.0.2.7:12345"},
		"its own":          {proxyHeader(0x20, 0x00, ""), "127.0.0.1:"},
		"of another kind":  {proxyHeader(0x21, 0x31, strings.Repeat("x", 216)), "127.0.0.1:"},
		"of no known kind": {proxyHeader(0x21, 0x00, ""), "127.0.0.1:"},
	} {
		r := start(t, "tcp", letsIn(t), "shop", behindProxy)
		conn := r.dial()
		if _, err := io.WriteString(conn, c.header); err != nil {
			t.Fatal(err)
		}
		send(t, conn, startup)
		testenv.Eventually(t, name+" logs in", func() bool { return len(r.srv.Sessions()) == 1 })
		if got := r.srv.Sessions()[0].Client; !strings.HasPrefix(got, c.want) {
			t.Errorf("%s: from %s; want %s", name, got, c.want)
		}
		r.stop()
	}
}

func TestAProxyThatSaysNothingIsNotBelieved(t *testing.T) {
	t.Parallel()
	plain, _ := startup.Encode(nil)
	for name, sent := range map[string]string{
		"no header":             string(plain),
		"version 1":             "PROXY TCP4 192.0.2.7 127.0.0.1 12345 7000\r\n" + string(plain),
		"another command":       proxyHeader(0x22, 0x11, strings.Repeat("x", 12)) + string(plain),
		"too short for its own": proxyHeader(0x21, 0x11, "\xc0\x00\x02\x07") + string(plain),
		"too long":              proxyHeader(0x21, 0x11, strings.Repeat("x", 5000)) + string(plain),
	} {
		r := start(t, "tcp", letsIn(t), "shop", behindProxy)
		conn := r.dial()
		_, _ = io.WriteString(conn, sent)
		if b, _ := io.ReadAll(conn); len(b) != 0 {
			t.Errorf("%s: answered %q; want the end", name, b)
		}
		r.stop()
	}
	// A header from outside the networks is not accepted.
	r := start(t, "tcp", letsIn(t), "shop")
	conn := r.dial()
	_, _ = io.WriteString(conn, proxyHeader(0x21, 0x11, "\xc0\x00\x02\x07\x7f\x00\x00\x01\x30\x39\x1b\x58")+string(plain))
	if code, message := finalError(t, conn); code != "08P01" {
		t.Errorf("a header from anywhere: %s %s; want 08P01", code, message)
	}
}

// Clients behind a proxy are counted under their own addresses.
func TestTheLimitPerAddressIsThatOfTheClientBehindTheProxy(t *testing.T) {
	t.Parallel()
	r := start(t, "tcp", letsIn(t), "shop", behindProxy, func(c *pgwire.Config) { c.MaxAddressLogins = 1 })
	from := func(last string) string {
		return proxyHeader(0x21, 0x11, "\xc0\x00\x02"+last+"\x7f\x00\x00\x01\x30\x39\x1b\x58")
	}
	ask := func(conn net.Conn) byte { // once the relay answers, it has read the header
		t.Helper()
		send(t, conn, &pgproto3.SSLRequest{})
		var b [1]byte
		_, _ = io.ReadFull(conn, b[:])
		return b[0]
	}
	for _, last := range []string{"\x07", "\x08"} {
		conn := r.dial()
		_, _ = io.WriteString(conn, from(last))
		if got := ask(conn); got != 'N' {
			t.Errorf("the first of an address: %q", got)
		}
	}
	conn := r.dial()
	_, _ = io.WriteString(conn, from("\x07"))
	if code, _ := finalError(t, conn); code != "53300" {
		t.Errorf("the second of an address: %q; want 53300", code)
	}
}
