package doctor

import (
	"bufio"
	"cmp"
	"context"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/redis/go-redis/v9"

	"github.com/fencegate/fencegate/fence/pgfence"
	"github.com/fencegate/fencegate/internal/pgtext"
	"github.com/fencegate/fencegate/lock"
	"github.com/fencegate/fencegate/lock/admin"
)

// oldestRedis is the oldest major version. Since then the script cache is in memory only, which reveals a restart.
const oldestRedis = "7."

func examineRedis(ctx context.Context, cfg Config) []Finding {
	var found []Finding
	if n := len(cfg.RedisNodes); n%2 == 0 && n > 2 { // two are refused below
		found = append(found, warn("redis.nodes", fmt.Sprintf("%d nodes: an even number tolerates no more failures than one node less", len(cfg.RedisNodes)), "Use 1, 3 or 5 independent nodes."))
	}
	group := lock.Config{Nodes: cfg.RedisNodes, NodeTimeout: max(cfg.Patience/10, time.Millisecond)} // without an Armer it admits no node
	if err := group.Validate(); err != nil {
		return append(found, fail("redis.nodes", err.Error(), "Correct the list of nodes: 1, 3 or 5 independent ones."))
	}
	prefix, unknown := keyPrefix(ctx, cfg)
	if unknown != nil {
		found = append(found, *unknown)
		for _, node := range cfg.RedisNodes {
			_, nodeFindings := examineNode(ctx, node, nameOf(node), cfg.Patience)
			found = append(found, nodeFindings...)
		}
		return found
	}
	group.KeyPrefix = lock.Prefix(prefix)
	nodes, err := admin.New(group)
	if err != nil {
		return append(found, fail("redis.nodes", err.Error(), "Correct the list of nodes: 1, 3 or 5 independent ones."))
	}
	states := nodes.Status(ctx)
	_ = nodes.Close()

	admitted := 0
	runs := map[string]string{}
	for i, node := range cfg.RedisNodes {
		node.Addr = cmp.Or(node.Addr, node.MasterName) // for messages
		node.Addr = nameOf(node)
		info, nodeFindings := examineNode(ctx, cfg.RedisNodes[i], node.Addr, cfg.Patience)
		found = append(found, nodeFindings...)
		if info == nil {
			continue
		}
		if twin, seen := runs[info["run_id"]]; seen && info["run_id"] != "" {
			found = append(found, fail("redis.independent", node.Addr+" and "+twin+" are one server: it counts double in a quorum", "Name each node once."))
		}
		runs[info["run_id"]] = node.Addr
		if states[i].Err == nil && states[i].Admitted { // with or without a warning
			admitted++
		}
		found = append(found, checkAdmission(node.Addr, node.Durable, states[i]))
	}
	found = append(found, checkMode(cfg.RedisNodes, states)...)
	quorum := len(cfg.RedisNodes)/2 + 1
	if admitted < quorum {
		return append(found, fail("redis.quorum", fmt.Sprintf("%d of %d nodes grant leases; %d are needed", admitted, len(cfg.RedisNodes), quorum),
			"Start the missing nodes. A gateway readmits nodes by itself after their quarantine; for a group's first start: fencegate serve --init"))
	}
	return append(found, ok("redis.quorum", "%d of %d nodes grant leases; %d are needed", admitted, len(cfg.RedisNodes), quorum))
}

// keyPrefix returns the prefix of the group's keys, or a finding that it is unknown. Then admission can't be checked.
func keyPrefix(ctx context.Context, cfg Config) (string, *Finding) {
	const check = "redis.prefix"
	if cfg.KeyPrefix != "" {
		return cfg.KeyPrefix, nil
	}
	if cfg.PostgresURL == "" {
		unknown := warn(check, "the key prefix is unknown, so the nodes' admission was not checked", "Name the database as well, by --postgres-url, or the start of its keys by --redis-prefix.")
		return "", &unknown
	}
	conn, err := pgx.Connect(ctx, cfg.PostgresURL)
	if err == nil {
		defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
		var prefix string
		if prefix, err = pgfence.KeyPrefix(conn)(ctx); err == nil {
			return prefix, nil
		}
	}
	unknown := fail(check, "failed to read the key prefix from PostgreSQL: "+pgtext.Of(err), "See the PostgreSQL finding; --redis-prefix names the keys without it.")
	return "", &unknown
}

// checkAdmission reports whether a node grants leases. mode reports on nodes that are declared durable.
func checkAdmission(addr string, durable bool, st admin.NodeStatus) Finding {
	const check = "redis.admitted"
	switch {
	case st.Err != nil:
		return fail(check, addr+": "+st.Err.Error(), "See what the node's log says.")
	case st.Quarantine > 0:
		return warn(check, fmt.Sprintf("%s lost its data or was restarted, and is in quarantine for another %s", addr, st.Quarantine.Round(time.Second)),
			"Nothing: a running gateway admits it afterwards.")
	case !st.Admitted:
		return warn(check, addr+" grants nothing: it is new, or lost its data or its run", "Keep a gateway running, which admits it after the quarantine; for a group's first start: fencegate serve --init")
	}
	if st.Warning != "" && !durable && !st.Watched {
		return warn(check, addr+": "+st.Warning, "ACL SETUSER USER +info, then restart the node.")
	}
	if st.Warning != "" && !durable {
		return warn(check, addr+": "+st.Warning, "min-replicas-to-write 1, and min-replicas-max-lag no more than the Sentinels' down-after-milliseconds.")
	}
	return ok(check, "%s is admitted; it grants leases of up to %s; epoch %d", addr, st.MaxTTL, st.Epoch)
}

func nameOf(n lock.Node) string { return cmp.Or(n.Name, n.Addr, n.MasterName) }

// examineNode returns the node's INFO; nil if the node does not answer. An answer may take a third of the patience, so that
// a silent node leaves time for the others.
func examineNode(ctx context.Context, node lock.Node, addr string, patience time.Duration) (map[string]string, []Finding) {
	var last net.Conn
	client := redis.NewClient(&redis.Options{
		Addr: addr, DB: node.DB,
		CredentialsProviderContext: func(context.Context) (string, string, error) { return node.Login() },

		Dialer: func(ctx context.Context, _, _ string) (conn net.Conn, err error) {
			conn, err = node.Dial(ctx)
			last = conn
			return conn, err
		},
		MaxRetries: -1, DialerRetries: 1, DialTimeout: patience / 3, ReadTimeout: patience / 3, DisableIdentity: true,
	})
	defer func() { _ = client.Close() }()
	text, err := client.Info(ctx).Result()
	if err != nil {
		return nil, []Finding{fail("redis.reachable", addr+": "+err.Error(), "Start the node, or correct its address, user or password (--redis-password-file).")}
	}
	info := parseInfo(text)
	name := cmp.Or(info["redis_version"], "?")
	found := []Finding{ok("redis.reachable", "%s, version %s", addr, name)}
	found = append(found, checkAging("redis.certificate", addr, last, node.TLS)...)
	if info["role"] == "" { // such as the nodes of fencegate dev, which are not Redis, or a proxy
		return info, append(found, warn("redis.replica", addr+": INFO does not say what it is, so it could not be checked", "Nothing for the nodes of fencegate dev; else name the Redis itself."))
	}
	if !strings.HasPrefix(name, oldestRedis) && info["server_name"] != "valkey" && !newerServer(name) {
		found = append(found, fail("redis.version", addr+" is version "+name+": its scripts outlive a restart, so a loss of data would go unnoticed", "Use Redis 7 or newer, or Valkey."))
	}
	if info["cluster_enabled"] == "1" {
		found = append(found, fail("redis.cluster", addr+" runs in cluster mode", "Use independent nodes; the keys of one resource lie in different slots."))
	}
	switch {
	case info["role"] != "master":
		found = append(found, fail("redis.replica", addr+" is a replica", "Name independent primaries only."))
	case len(node.Sentinels) > 0:
		found = append(found, checkSentinels(ctx, addr, client))
	case info["connected_slaves"] != "0":
		found = append(found, warn("redis.replica", addr+" has "+info["connected_slaves"]+" replica(s): one that a failover promotes may have forgotten locks", "Let no failover promote them (no Sentinel), or do without."))
	default:
		found = append(found, ok("redis.replica", "%s is a primary without replicas", addr))
	}
	found = append(found, checkPersistence(ctx, addr, client), checkEviction(ctx, addr, client), checkNodeClock(ctx, addr, client))
	return info, found
}

// newerServer reports whether a version's major number has several digits or is above 7.
func newerServer(version string) bool {
	major, _, _ := strings.Cut(version, ".")
	return len(major) > 1 || major > "7" && major <= "9"
}

func parseInfo(text string) map[string]string {
	info := map[string]string{}
	for lines := bufio.NewScanner(strings.NewReader(text)); lines.Scan(); {
		if name, value, ok := strings.Cut(strings.TrimSpace(lines.Text()), ":"); ok {
			info[name] = value
		}
	}
	return info
}

// checkSentinels checks the settings that keep a former primary from granting beside the new one.
func checkSentinels(ctx context.Context, addr string, client *redis.Client) Finding {
	const check = "redis.replica"
	values, err := client.ConfigGet(ctx, "min-replicas-to-write").Result()
	switch {
	case err != nil:
		return warn(check, addr+": could not be checked: "+err.Error(), "Look at min-replicas-to-write yourself: doctor may not read the node's configuration.")
	case values["min-replicas-to-write"] == "0":
		return warn(check, addr+" keeps granting when it is cut off from its replicas, while Sentinels may promote one", "min-replicas-to-write 1, and min-replicas-max-lag no more than the Sentinels' down-after-milliseconds.")
	}
	return ok(check, "%s is the primary that its Sentinels name; a failover counts as loss of the node", addr)
}

func checkPersistence(ctx context.Context, addr string, client *redis.Client) Finding {
	const check = "redis.persistence"
	values, err := client.ConfigGet(ctx, "append*").Result()
	switch {
	case err != nil:
		return warn(check, addr+": could not be checked: "+err.Error(), "Look at appendonly and appendfsync yourself: doctor may not read the node's configuration.")
	case values["appendonly"] != "yes":
		return warn(check, addr+" keeps nothing over a restart (appendonly no)", "appendonly yes, appendfsync always; or accept that lock counters start from PostgreSQL's fences after a restart.")
	case values["appendfsync"] != "always":
		return warn(check, addr+" can lose the last writes in a crash (appendfsync "+values["appendfsync"]+")", "appendfsync always; or accept that a crash of the machine can lose the last locks.")
	}
	return ok(check, "%s writes through (appendfsync always)", addr)
}

func checkEviction(ctx context.Context, addr string, client *redis.Client) Finding {
	const check = "redis.eviction"
	values, err := client.ConfigGet(ctx, "maxmemory*").Result()
	policy := values["maxmemory-policy"]
	switch {
	case err != nil:
		return warn(check, addr+": could not be checked: "+err.Error(), "Set maxmemory-policy noeviction.")
	case policy == "noeviction":
		return ok(check, "%s evicts nothing", addr)
	case values["maxmemory"] == "0":
		return warn(check, addr+" would evict keys ("+policy+") if it had a memory limit", "maxmemory-policy noeviction")
	}
	return fail(check, addr+" evicts keys when memory is short ("+policy+"): locks vanish before their time", "maxmemory-policy noeviction")
}

func checkNodeClock(ctx context.Context, addr string, client *redis.Client) Finding {
	const check = "redis.clock"
	begun := time.Now()
	there, err := client.Time(ctx).Result()
	if err != nil {
		return warn(check, addr+": could not be checked: "+err.Error(), "Allow the command TIME.")
	}
	f := judgeClock(check, there, begun)
	f.Found = addr + ": " + f.Found
	return f
}

// checkMode reports whether a group is best effort, whether its nodes disagree, and what a durable node guarantees.
func checkMode(nodes []lock.Node, states []admin.NodeStatus) []Finding {
	const check = "redis.mode"
	var strict, bestEffort []string
	for i, st := range states {
		switch {
		case st.Err != nil || !st.Admitted:
		case st.BestEffort:
			bestEffort = append(bestEffort, nameOf(nodes[i]))
		default:
			strict = append(strict, nameOf(nodes[i]))
		}
	}
	switch {
	case len(bestEffort) > 0 && len(strict) > 0:
		return []Finding{fail(check, strings.Join(bestEffort, ", ")+" best effort, and "+strings.Join(strict, ", ")+" strict: a gateway uses the nodes of its own mode only",
			"Mark all of them, by: fencegate nodes mode strict, or best-effort; and start all gateways with or without --redis-best-effort.")}
	case len(bestEffort) > 0:
		return []Finding{ok(check, "best effort: a node that lost its data is admitted at once; two may hold a resource then, and the fence lets only the newest write")}
	case len(strict) == 1 && len(nodes) == 1:
		return durability(check, nodes[0], states[0])
	}
	return nil
}

// durability examines the only node of a group, which is admitted and strict.
func durability(check string, node lock.Node, st admin.NodeStatus) []Finding {
	name := nameOf(node)
	switch {
	case !node.Durable && !st.Durable:
		return nil
	case !node.Durable:
		return []Finding{warn(check, name+" was admitted as durable, and --redis-durable is not given here: a process without it that admits the node waits for the longest TTL",
			"Give all gateways and commands --redis-durable, or none.")}
	case st.Warning != "":
		return []Finding{warn(check, name+": "+st.Warning+"; after its next restart it is quarantined for the longest TTL",
			"appendonly yes, appendfsync always, no-appendfsync-on-rewrite no, and room for the file; or do without --redis-durable.")}
	case !st.Durable:
		return []Finding{warn(check, name+" is declared durable, and was not when it was admitted: after its next restart it is quarantined for the longest TTL",
			"Restart its server once, when no lease is needed: after that quarantine it is durable.")}
	}
	return []Finding{ok(check, "durable: after a restart %s is admitted at once, with the locks that it kept. Its settings are checked with each admission. "+
		"Other settings, an epoch that was raised in between, or a fence above its counter cost the longest TTL. "+
		"Nothing shows that it was restored from a copy made since its last admission, unless a fence has risen: never restore it", name)}
}
