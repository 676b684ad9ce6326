package table

// tortured lists a safeguard of each source of leases, which its torture sees.
var tortured = []Mutant{
	{
		Name: "torture-postgresql", What: "an extension leaves the lease's end as it was",
		File: "migrations/fence/code/leases.sql", Test: "lock/pglock.TestTortureOfPostgreSQL",
		Old: "SET ends_at = greatest(l.ends_at, clock_timestamp() + p_ttls[x.n] * interval '1 us')",
		New: "SET ends_at = l.ends_at",
	},
	{
		Name: "torture-etcd", What: "a resource's key is created over another's",
		File: "lock/etcdlock/take.go", Test: "lock/etcdlock.TestTortureOfEtcd",
		Old: "a.base.unchanged(s.baseKey()), clientv3.Compare(clientv3.CreateRevision(lock), \"=\", 0)}",
		New: "a.base.unchanged(s.baseKey())}",
	},
	{
		Name: "torture-zookeeper", What: "a lease's node is created although the resource has changed",
		File: "lock/zklock/take.go", Test: "lock/zklock.TestTortureOfZooKeeper",
		Old: "Data: []byte(own.String()), Version: at.version},",
		New: "Data: []byte(own.String()), Version: -1},",
	},
	{
		Name: "torture-redis", What: "a release deletes whoever's lock it finds",
		File: "lock/internal/node/scripts/release.lua", Test: "lock.TestTorture",
		Old: "if not held or string.sub(held, 1, 32) ~= ARGV[1] then",
		New: "if not held then",
		Also: []Change{{
			File: "lock/internal/node/scripts/batch.lua",
			Old:  "if held and sub(held, 1, 32) == ARGV[first + i] then",
			New:  "if held then",
		}},
	},
}
