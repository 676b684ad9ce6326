package gateway_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/gateway"
	"github.com/fencegate/fencegate/lock"
)

// What New or Start would refuse without asking a server, Faults tells.
func TestFaultsTellWhatAStartWouldRefuse(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(*gateway.Config)
		field  string // ""; there is no fault
	}{
		"nothing":                {func(*gateway.Config) {}, ""},
		"two nodes":              {func(c *gateway.Config) { c.RedisNodes = []lock.Node{{Addr: "a:1"}, {Addr: "b:1"}} }, "nodes"},
		"a node twice":           {func(c *gateway.Config) { c.RedisNodes = []lock.Node{{Addr: "a:1"}, {Addr: "b:1"}, {Addr: "a:1"}} }, "nodes"},
		"a long lease":           {func(c *gateway.Config) { c.MaxTTL = 48 * time.Hour }, "max ttl"},
		"a long PostgreSQL one":  {func(c *gateway.Config) { c.PostgresLeases, c.RedisNodes, c.MaxTTL = true, nil, 48*time.Hour }, "max ttl"},
		"leases from PostgreSQL": {func(c *gateway.Config) { c.PostgresLeases, c.RedisNodes = true, nil }, ""},
		"a port over 65535":      {func(c *gateway.Config) { c.PGListen = "127.0.0.1:99999" }, "PGListen"},
		"the default address":    {func(c *gateway.Config) { c.MetricsListen = "127.0.0.1:7070" }, "MetricsListen"},
		"every address":          {func(c *gateway.Config) { c.APIListen, c.PGListen = "127.0.0.1:1", "0.0.0.0:1" }, "PGListen"},
		"every IPv6 address":     {func(c *gateway.Config) { c.APIListen, c.PGListen = "[::]:1", "127.0.0.1:1" }, "PGListen"},
		"a name":                 {func(c *gateway.Config) { c.APIListen, c.PGListen = "GW:1", "gw:1" }, "PGListen"},
		"another address":        {func(c *gateway.Config) { c.APIListen, c.PGListen = "127.0.0.1:1", "127.0.0.2:1" }, ""},
		"every address, IPv6":    {func(c *gateway.Config) { c.APIListen, c.PGListen = "0.0.0.0:1", "[::1]:1" }, "PGListen"},
		"another family":         {func(c *gateway.Config) { c.APIListen, c.PGListen = "127.0.0.1:1", "[::1]:1" }, ""},
		"any free port":          {func(c *gateway.Config) { c.APIListen, c.PGListen = "127.0.0.1:0", "127.0.0.1:0" }, ""},
		"a bucket's name": {func(c *gateway.Config) {
			c.S3Listen, c.BlobDir, c.Buckets = "127.0.0.1:0", t.TempDir(), map[string]string{"Orders_X": "key"}
		}, "bucket"},
	} {
		cfg := gateway.Config{PostgresURL: "postgres://x@127.0.0.1:1/x", MasterKey: masterKey, RedisNodes: []lock.Node{{Addr: "127.0.0.1:1"}}}
		c.change(&cfg)
		all := cfg.Faults()
		if c.field == "" {
			if len(all) > 0 {
				t.Errorf("%s: %v", name, all)
			}
			continue
		}
		if invalid, ok := errors.AsType[*fence.InvalidError](errors.Join(all...)); !ok || invalid.Field != c.field || len(all) != 1 {
			t.Errorf("%s: %v; want one fault, of %s", name, all, c.field)
		}
	}
}

func TestVerifyCAReadsTheAuthority(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "ca")
	if err := os.WriteFile(file, []byte("nonsense"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := gateway.New(gateway.Config{PostgresURL: "postgres://u@h/d?sslmode=verify-ca&sslrootcert=" + file})
	if err == nil {
		t.Error("an authority that can't be read passed")
	}
}
