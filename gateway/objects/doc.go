// Package objects is the catalogue of the S3 port in PostgreSQL, and the blobs that
// it lists: buckets and their rules, versions, uploads. It speaks no HTTP.
//
// The guarantee: a change takes effect only while its proof is that of the recorded
// grant. The bytes of an upload go to a blob that nothing points at. Then one
// transaction checks the fence and swaps the key's pointer, so a reader sees the
// old version or the new one, and a stale writer changes nothing. A change whose
// outcome is unknown says so ([fence.ErrUnknown]).
//
//	db := objects.NewDatabase(pool, 10*time.Second)
//	catalog := objects.NewCatalog(db)
//	reader := objects.NewReader(db, store, log)
//	writer := objects.NewWriter(ctx, objects.Config{DB: db, Store: store, Log: log, Owned: keeper.Owned, Decided: observe}, reader)
//	v, err := reader.Find(ctx, "orders", "1001/invoice.txt", "")
//	bytes, err := reader.Open(ctx, v, 0, v.Size)
//
// [Catalog] needs no bytes, [Reader] finds versions and opens them, [Writer] stores
// them. Package maintenance keeps a blob store and its database in agreement.
package objects
