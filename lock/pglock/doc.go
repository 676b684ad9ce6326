// Package pglock gives leases with PostgreSQL alone: the server that is fenced also says who holds a resource.
//
// The guarantee: a lease is given by the COMMIT that raises its fence, so tokens are unique and rise as long as PostgreSQL
// keeps what it acknowledged. By the server's clock a resource has one holder at a time, and a lease that has ended is never
// extended. After a failover or a restore, when fences may have fallen, no lease is given until
// `fencegate fence invalidate-all` has run.
//
//	source, err := pglock.New(pglock.Config{Pool: pool}) // a login in the role fence_locker
//	if err != nil {
//		return err
//	}
//	defer source.Close()
//	lease, err := source.Acquire(ctx, leasing.Request{Resource: "orders/1001", TTL: 30 * time.Second})
//	if err != nil {
//		return err
//	}
//	defer source.Release(ctx, lease.Ref())
//	err = pgfence.InTx(ctx, pool, lease.Grant, func(tx pgx.Tx) error { … })
//
// What a process asks at the same time goes together, at most 64 leases in one transaction that waits for nobody: taking,
// extending and releasing each. The functions are migrations/fence/code/leases.sql.
package pglock
