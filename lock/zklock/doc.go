// Package zklock provides leases over a ZooKeeper ensemble, with fencing tokens from its transaction ids.
//
// The guarantee: a lease is given by a transaction that creates an ephemeral child of the resource's node, and changes
// the node if it is unchanged since it was seen to be free. The token is a base plus the child's czxid. Tokens are
// unique and rise, over all resources of a prefix, as long as the ensemble keeps what it acknowledged. With an Armer,
// arming refuses tokens that have fallen, and the Source raises the base. Without one, call [Source.RaiseTokens].
//
//	source, err := zklock.New(zklock.Config{Servers: servers, Prefix: "/orders", Armer: pgfence.New(pool)})
//	if err != nil {
//		return err
//	}
//	defer source.Close()
//	lease, err := leasing.One(source.Acquire(ctx, leasing.UntilDone, leasing.Request{Resource: "orders/1001", TTL: 10 * time.Second}))
//	if err != nil {
//		return err
//	}
//	defer source.Release(ctx, lease.Ref())
//
// A lease ends at its deadline, by the holder's own clock, or with the session of the process that took or last
// extended it. The session outlives every deadline that it has given out. A process that died blocks its resources
// until its session has expired.
package zklock
