// Package fence has the types that all of fencegate shares: resources, fencing tokens, seals, grants, and the errors of a
// fence.
//
// The guarantee: a writer whose lease has ended cannot change guarded data, however long it was paused. The fence
// compares the [Grant] that a writer presents with the highest [Token] recorded for the resource, inside the
// transaction that writes. Package pgfence does this in PostgreSQL.
//
//	grant, err := fence.ParseGrant("orders/1001", "34.6f1c…") // resource + what the acquirer was given
//	if err != nil {
//		return err // *fence.InvalidError: says which part is malformed
//	}
//	err = pgfence.InTx(ctx, pool, grant, func(tx pgx.Tx) error {
//		_, err := tx.Exec(ctx, "UPDATE orders SET status = 'paid' WHERE id = 1001")
//		return err
//	})
//	if errors.Is(err, fence.ErrStale) {
//		// A newer holder took over; nothing was written.
//	}
//
// The package imports nothing but the standard library, starts no goroutine,
// and its values are safe to copy and to share between goroutines.
//
// The idea of the fencing token is described by Martin Kleppmann, "How to do
// distributed locking" (2016), and by Mike Burrows, "The Chubby lock service
// for loosely-coupled distributed systems" (OSDI 2006), as sequencers.
package fence
