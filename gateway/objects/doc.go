// Package objects is the catalog of the S3 port in PostgreSQL, and the blobs that it lists: buckets and their rules,
// versions, uploads. It does not depend on HTTP.
//
// The guarantee: a change takes effect only while its proof matches the recorded grant. The bytes of an upload go to a
// blob to which nothing points. Then one transaction checks the fence and swaps the key's pointer, so a reader sees the
// old version or the new one, and a stale writer changes nothing. A change whose outcome is unknown reports
// [fence.ErrUnknown].
//
//	db := objects.NewDatabase(pool, 10*time.Second)
//	catalog := objects.NewCatalog(db)
//	reader := objects.NewReader(db, store, log)
//	cfg := objects.Config{DB: db, Store: store, Log: log, Owned: keeper.Owned, Decided: observe}
//	writer := objects.NewWriter(ctx, cfg, reader)
//	v, err := reader.Find(ctx, "orders", "1001/invoice.txt", "")
//	bytes, err := reader.Open(ctx, v, 0, v.Size)
//
// [Catalog] works without bytes, [Reader] finds versions and opens them, [Writer] stores them. Package maintenance
// keeps a blob store and its database consistent.
package objects
