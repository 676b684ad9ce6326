// Package etcdlock gives leases over an etcd cluster, with fencing tokens from etcd's revision.
//
// The guarantee: a lease is given by a transaction that creates the resource's key, and its token is a base plus the key's
// create revision. So the tokens of a resource are unique and rise, as long as the cluster keeps what it acknowledged;
// those of several resources that one transaction gives are equal. A cluster that was restored from an older snapshot
// gives tokens that fall; with an Armer none of them is given: arming refuses them, and the Source raises the base above
// what the fence records. Without one, raise it with [Source.RaiseTokens].
//
//	client, err := clientv3.New(clientv3.Config{
//		Endpoints: endpoints, DialTimeout: 5 * time.Second,
//		// Without them calls go on to a member that froze, and kept its connections. gRPC sends none sooner than 10 s.
//		DialKeepAliveTime: 10 * time.Second, DialKeepAliveTimeout: 2 * time.Second,
//	})
//	if err != nil {
//		return err
//	}
//	defer client.Close()
//	source, err := etcdlock.New(etcdlock.Config{Client: client, Prefix: "orders", Armer: pgfence.New(pool)})
//	if err != nil {
//		return err
//	}
//	defer source.Close()
//	lease, err := source.Acquire(ctx, leasing.Request{Resource: "orders/1001", TTL: 30 * time.Second})
//	if err != nil {
//		return err
//	}
//	defer source.Release(ctx, lease.Ref())
//
// Each acquisition has a key and an owner of its own. The etcd leases behind the keys are granted ahead, at most one per
// second for leases of one length, and shared: so acquiring is one proposal, and so is releasing. Each extension moves
// the key to another etcd lease in a transaction, which compares the key's revision: one that arrives after a newer one is
// refused. Nothing is ever kept alive: before etcd 3.5.13, a leader that was paused and superseded still confirms
// keep-alives (https://github.com/etcd-io/etcd/issues/15247).
//
// Leave PermitWithoutStream off in the client's configuration: etcd closes the connection of a client that sends
// keep-alives while it calls nothing.
package etcdlock
