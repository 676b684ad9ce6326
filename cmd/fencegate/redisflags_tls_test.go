package main

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/fencegate/fencegate/internal/certs"
	"github.com/fencegate/fencegate/internal/redisserver"
	"github.com/fencegate/fencegate/lock"
	"github.com/fencegate/fencegate/lock/admin"
)

// secured is a Redis node with a TLS port that requires a client certificate and the login lockers.
type secured struct {
	addr                  string // of the TLS port
	ca, cert, key, secret string // files
}

func startSecured(t *testing.T) secured {
	t.Helper()
	s := certificates(t, t.TempDir(), 3*day) // doctor warns of it
	if err := os.WriteFile(s.secret, []byte("first\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	addr, err := redisserver.FreeAddr()
	if err != nil {
		t.Fatal(err)
	}
	s.addr = addr
	_, port, _ := net.SplitHostPort(addr)
	server, err := redisserver.Start(t.Context(), redisserver.Config{Args: []string{
		"--tls-port", port, "--tls-cert-file", s.cert, "--tls-key-file", s.key, "--tls-ca-cert-file", s.ca, "--tls-auth-clients", "yes",
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Close() })
	admin := redis.NewClient(&redis.Options{Addr: server.Addr}) // the plain port's user may do everything
	defer func() { _ = admin.Close() }()
	if err := admin.Do(t.Context(), "ACL", "SETUSER", "lockers", "on", ">first", "~*", "&*", "+@all").Err(); err != nil {
		t.Fatal(err)
	}
	if err := admin.Do(t.Context(), "ACL", "SETUSER", "default", "off").Err(); err != nil {
		t.Fatal(err)
	}
	return s
}

const day = 24 * time.Hour

// certificates creates a CA, and a certificate for the node and the clients, which lasts for so long.
func certificates(t *testing.T, dir string, lasts time.Duration) secured {
	t.Helper()
	s := secured{ca: filepath.Join(dir, "ca.crt"), cert: filepath.Join(dir, "tls.crt"), key: filepath.Join(dir, "tls.key"), secret: filepath.Join(dir, "password")}
	ca, node := certs.Authority("authority"), certs.For("redis.example")
	ca.NotAfter, node.NotBefore, node.NotAfter = time.Now().Add(365*day), time.Now().Add(-90*day), time.Now().Add(lasts)
	signer := certs.New(ca)
	certs.Replace(t, s.ca, signer.Cert)
	signer.Sign(node).Write(t, s.cert, s.key)
	return s
}

func (s secured) vars(without ...string) map[string]string {
	vars := map[string]string{
		"FENCEGATE_REDIS": "rediss://lockers@" + s.addr, "FENCEGATE_REDIS_PASSWORD_FILE": s.secret, "FENCEGATE_REDIS_TLS_CA": s.ca, "FENCEGATE_REDIS_PREFIX": lock.DefaultKeyPrefix,
		"FENCEGATE_REDIS_TLS_CERT": s.cert, "FENCEGATE_REDIS_TLS_KEY": s.key, "FENCEGATE_REDIS_TLS_SERVER_NAME": "redis.example",
	}
	for _, name := range without {
		delete(vars, name)
	}
	return vars
}

// Every command that connects to the nodes can use TLS, with a certificate and the address's user.
func TestCommandsReachRedisByTLS(t *testing.T) {
	t.Parallel()
	s := startSecured(t)
	flags := redisFlags{
		addrs: []string{"rediss://lockers@" + s.addr}, passwordFile: s.secret, ca: s.ca, cert: s.cert, key: s.key, tlsName: "redis.example",
	}
	nodes, err := flags.nodes(env{lookup: func(string) (string, bool) { return "", false }})
	if err != nil {
		t.Fatal(err)
	}
	l, err := lock.New(lock.Config{Nodes: nodes, NodeTimeout: 20 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := admin.Of(l).Init(ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Acquire(ctx, "r"); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"nodes", "status"}, {"nodes", "leaks"}, {"nodes", "sweep"}} {
		if code, out, stderr := cli(t, s.vars(), args...); code != exitOK {
			t.Errorf("%v: %d\n%s%s", args, code, out, stderr)
		}
	}
	if _, out, _ := cli(t, s.vars(), "doctor"); !strings.Contains(out, "redis.reachable") || strings.Contains(out, "FAIL  redis.reachable") ||
		!strings.Contains(out, "WARN  redis.certificate: the certificate of "+s.addr+" expires on") ||
		!strings.Contains(out, "WARN  redis.certificate: the certificate that is shown to "+s.addr+" expires on") {
		t.Errorf("doctor:\n%s", out)
	}
	for what, vars := range map[string]map[string]string{
		"without a certificate":  s.vars("FENCEGATE_REDIS_TLS_CERT", "FENCEGATE_REDIS_TLS_KEY"),
		"of another authority":   s.vars("FENCEGATE_REDIS_TLS_CA"),
		"of another name":        s.vars("FENCEGATE_REDIS_TLS_SERVER_NAME"),
		"without a password":     s.vars("FENCEGATE_REDIS_PASSWORD_FILE"),
		"a certificate, no key":  s.vars("FENCEGATE_REDIS_TLS_KEY"),
		"as the user of the old": func() map[string]string { v := s.vars(); v["FENCEGATE_REDIS"] = "rediss://" + s.addr; return v }(),
	} {
		if code, out, _ := cli(t, vars, "nodes", "status"); code == exitOK {
			t.Errorf("%s: %s", what, out)
		}
	}
}

// One TLS flag is enough for addresses without a scheme.
func TestAFlagOfTLSMeansTLSForAllNodes(t *testing.T) {
	t.Parallel()
	for _, flags := range []redisFlags{{tls: true}, {tlsName: "redis.example"}} {
		flags.addrs = []string{"r1:6379", "primary@s1:26379"}
		nodes, err := flags.nodes(env{lookup: func(string) (string, bool) { return "", false }})
		if err != nil || nodes[0].TLS == nil || nodes[1].TLS == nil {
			t.Errorf("%+v: %+v, %v", flags, nodes, err)
		}
	}
	plain := redisFlags{addrs: []string{"r1:6379", "rediss://lockers@r2:6379"}, user: "others"}
	nodes, err := plain.nodes(env{lookup: func(string) (string, bool) { return "", false }})
	if err != nil || nodes[0].TLS != nil || nodes[1].TLS == nil || nodes[0].Username != "others" || nodes[1].Username != "lockers" || nodes[1].Addr != "r2:6379" {
		t.Errorf("%+v, %v", nodes, err)
	}
}
