//go:build unix

package doctor

import (
	"net"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/fencegate/fencegate/internal/redisserver"
	"github.com/fencegate/fencegate/internal/testenv"
	"github.com/fencegate/fencegate/lock"
	"github.com/fencegate/fencegate/lock/admin"
)

func nodes(addrs ...string) []lock.Node {
	list := make([]lock.Node, len(addrs))
	for i, addr := range addrs {
		list[i].Addr = addr
	}
	return list
}

// patiently examines with time for the answers of a busy machine.
func patiently(t *testing.T, cfg Config) []Finding {
	t.Helper()
	cfg.Patience = time.Minute
	return Examine(t.Context(), cfg)
}

func TestRedisNodesAreExamined(t *testing.T) {
	t.Parallel()
	sound := testenv.OwnRedisWith(t, 3, redisserver.Config{AppendOnly: redisserver.Always})
	addrs := []string{sound[0].Addr, sound[1].Addr, sound[2].Addr}
	examine := func(list ...string) []Finding {
		return patiently(t, Config{RedisNodes: nodes(list...), KeyPrefix: lock.DefaultKeyPrefix})
	}
	findings := examine(addrs...)
	want(t, findings, "redis.admitted", Warn, "--init")
	want(t, findings, "redis.quorum", Fail)

	locker, err := lock.New(lock.Config{Nodes: nodes(addrs...), NodeTimeout: 20 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = locker.Close() }()
	testenv.Eventually(t, "the nodes are admitted", func() error { return admin.Of(locker).Init(t.Context()) }) // a node may answer too late
	findings = examine(addrs...)
	if Worst(findings) != OK {
		t.Errorf("sound nodes: %+v", findings)
	}
	findings = examine(addrs[0], strings.Replace(addrs[0], "127.0.0.1", "localhost", 1), addrs[1])
	want(t, findings, "redis.independent", Fail, addrs[0])
	want(t, examine(addrs[:2]...), "redis.nodes", Fail, "both are required for a quorum")
	want(t, examine(append(addrs[:3:3], "127.0.0.1:1")...), "redis.nodes", Warn, "even number")

	if err := sound[2].Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	findings = examine(addrs...)
	want(t, findings, "redis.admitted", Warn, addrs[2])
	want(t, findings, "redis.quorum", OK)
	if err := sound[2].Kill(); err != nil {
		t.Fatal(err)
	}
	findings = examine(addrs...)
	want(t, findings, "redis.reachable", Fail, addrs[2])
	want(t, findings, "redis.quorum", OK)
}

// Nodes without the INFO fields, like those of fencegate dev, are reported neither as replicas nor as one server.
func TestNodesThatSayNothingOfThemselvesAreNotJudged(t *testing.T) {
	t.Parallel()
	findings := patiently(t, Config{RedisNodes: nodes(miniredis.RunT(t).Addr(), miniredis.RunT(t).Addr(), miniredis.RunT(t).Addr())})
	want(t, findings, "redis.replica", Warn, "could not be checked")
	for _, f := range findings {
		if f.Check == "redis.independent" || f.Check == "redis.version" {
			t.Errorf("%+v", f)
		}
	}
}

func TestEachFaultOfARedisNodeIsFound(t *testing.T) {
	t.Parallel()
	plain := testenv.OwnRedis(t, 1)[0]
	for name, broken := range map[string]struct {
		cfg    redisserver.Config
		check  string
		status Status
		word   string
	}{
		"no persistence":      {check: "redis.persistence", status: Warn},
		"every second":        {cfg: redisserver.Config{AppendOnly: redisserver.EverySec}, check: "redis.persistence", status: Warn},
		"would evict":         {cfg: redisserver.Config{Args: []string{"--maxmemory-policy", "allkeys-lru"}}, check: "redis.eviction", status: Warn},
		"evicts":              {cfg: redisserver.Config{Args: []string{"--maxmemory-policy", "allkeys-lru", "--maxmemory", "100mb"}}, check: "redis.eviction", status: Fail},
		"evicts what expires": {cfg: redisserver.Config{Args: []string{"--maxmemory-policy", "volatile-ttl", "--maxmemory", "100mb"}}, check: "redis.eviction", status: Fail},
		"replica":             {cfg: redisserver.Config{Args: []string{"--replicaof", strings.Replace(plain.Addr, ":", " ", 1)}}, check: "redis.replica", status: Fail},
		"cluster":             {cfg: redisserver.Config{Args: []string{"--cluster-enabled", "yes"}}, check: "redis.cluster", status: Fail},
		"configuration hid":   {cfg: redisserver.Config{Args: []string{"--rename-command", "CONFIG", "hidden"}}, check: "redis.eviction", status: Warn},
		"password is missing": {check: "redis.reachable", status: Fail, word: "NOAUTH"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var addr string
			if name == "replica" {
				host, port, _ := net.SplitHostPort(plain.Addr)
				broken.cfg.Args = []string{"--replicaof", host + " " + port}
			}
			if name == "password is missing" {
				addr = demandsPassword(t)
			} else {
				addr = testenv.OwnRedisWith(t, 1, broken.cfg)[0].Addr
			}
			want(t, patiently(t, Config{RedisNodes: nodes(addr)}), broken.check, broken.status, broken.word)
		})
	}
}

// A node whose configuration is hidden is not said to lack a setting.
func TestSettingsForSentinelsThatAreHiddenAreNotJudged(t *testing.T) {
	t.Parallel()
	for word, args := range map[string][]string{
		"could not be checked": {"--rename-command", "CONFIG", "hidden"},
		"keeps granting":       nil,
	} {
		addr := testenv.OwnRedisWith(t, 1, redisserver.Config{Args: args})[0].Addr
		client := redis.NewClient(&redis.Options{Addr: addr})
		want(t, []Finding{checkSentinels(t.Context(), addr, client)}, "redis.replica", Warn, word, "min-replicas-to-write")
		if err := client.Close(); err != nil {
			t.Error(err)
		}
	}
}

// demandsPassword is the address of a node that requires a password.
func demandsPassword(t *testing.T) string {
	t.Helper()
	node := miniredis.RunT(t)
	node.RequireAuth("secret")
	return node.Addr()
}
