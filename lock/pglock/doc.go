// Package pglock provides leases with PostgreSQL alone: the fenced server also records who holds a resource.
//
// The guarantee: a lease is given by the COMMIT that raises its fence, so tokens are unique and rise as long as
// PostgreSQL keeps what it acknowledged. By the server's clock a resource has one holder at a time, and a lease that
// has ended is never extended. After a failover or a restore, when fences may have been lost, no lease is given until
// `fencegate fence invalidate-all` has run.
//
//	source, err := pglock.New(pglock.Config{Pool: lockers}) // logins in the role fence_locker
//	if err != nil {
//		return err
//	}
//	defer source.Close()
//	lease, err := leasing.One(source.Acquire(ctx, leasing.UntilDone, leasing.Request{Resource: "orders/1001", TTL: 30 * time.Second}))
//	if err != nil {
//		return err
//	}
//	defer source.Release(ctx, lease.Ref())
//	err = pgfence.InTx(ctx, writers, lease.Grant, func(tx pgx.Tx) error { … }) // logins in fence_writer
//
// Concurrent requests of a process are grouped, by kind: taking, extending and releasing. A group is one transaction of
// at most 64 leases, which waits for no lock. The functions are in migrations/fence/code/leases.sql.
package pglock
