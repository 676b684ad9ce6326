// Package maintenance keeps a blob store and its database consistent: it deletes blobs that nothing lists (sweep),
// reads listed blobs again (verify), and checks that the store belongs to this database (claim).
//
// The guarantee: no live object's bytes are deleted. A blob's row is marked and committed before its bytes are deleted,
// and another database's store is not touched.
//
//	keeper := maintenance.New(objects.NewDatabase(pool, 0), store)
//	swept, err := keeper.Sweep(ctx, maintenance.Sweep{})
//	verified, err := keeper.Verify(ctx, maintenance.Verify{Kept: true}, func(f maintenance.Finding) { log.Print(f) })
package maintenance
