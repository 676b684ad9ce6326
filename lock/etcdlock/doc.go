// Package etcdlock provides leases over an etcd cluster, with fencing tokens from etcd's revision.
//
// The guarantee: a lease is given by a transaction that creates the resource's key. Its token is a base plus the key's
// create revision. The tokens of a resource are unique and rise as long as the cluster keeps what it acknowledged.
// Leases of several resources that one transaction gives have equal tokens. A cluster that was restored from an older
// snapshot yields lower tokens. With an Armer no lease gets such a token: arming refuses it, and the Source raises the
// base above what the fence records. Without an Armer, call [Source.RaiseTokens].
//
//	client, err := clientv3.New(clientv3.Config{
//		Endpoints: endpoints, DialTimeout: 5 * time.Second,
//		// Without keep-alives, calls keep going to a frozen member. gRPC's minimum is 10 s.
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
//	lease, err := leasing.One(source.Acquire(ctx, leasing.UntilDone, leasing.Request{Resource: "orders/1001", TTL: 30 * time.Second}))
//	if err != nil {
//		return err
//	}
//	defer source.Release(ctx, lease.Ref())
//
// Each acquisition has its own key and owner. The etcd leases behind the keys are granted ahead, at most one per second
// for each lease length, and shared. So acquiring is one proposal, and so is releasing. Each extension attaches the key
// to another etcd lease in a transaction that compares the key's revision: etcd refuses one that arrives after a newer
// one. No etcd lease is kept alive: before etcd 3.5.13, a leader that was paused and superseded still confirms
// keep-alives (https://github.com/etcd-io/etcd/issues/15247).
//
// Leave PermitWithoutStream off in the client's configuration: etcd closes the connection of a client that sends
// keep-alives without active calls.
package etcdlock
