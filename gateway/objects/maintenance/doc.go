// Package maintenance keeps a blob store and its database in agreement: it deletes
// what nothing lists (sweep), reads again what is listed (verify), and sees that the
// store is this database's and no other's (claim).
//
// The guarantee: no live object's bytes are deleted. A blob's row is marked and
// committed before its bytes go, and nothing is touched in another database's store.
//
//	keeper := maintenance.New(objects.NewDatabase(pool, 0), store)
//	swept, err := keeper.Sweep(ctx, maintenance.Sweep{})
//	verified, err := keeper.Verify(ctx, maintenance.Verify{Kept: true}, func(f maintenance.Finding) { log.Print(f) })
package maintenance
