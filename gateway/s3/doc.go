// Package s3 serves shared files on the S3 API, fenced.
//
// The guarantee: an upload or a deletion takes effect only while the writer's
// fencing token is the recorded one. The bytes go to a blob store under an id of
// their own; then one PostgreSQL transaction checks the fence and swaps the
// pointer from the key to the new version. A writer whose lease is over gets 412
// StaleFencingToken, and what was there before is still there. Nothing in this
// rests on a clock.
//
// Who may do what: everybody with credentials, those of any lease included, reads
// everything; there are no rules for reading. The root credentials read, and manage buckets, but by
// themselves write no object. Writes need the temporary credentials of a lease, which [credentials.Keyring.Issue]
// makes without keeping any state, so every SDK and tool is fenced by its ordinary
// environment variables. They hold the resource and the token, never the seal.
// Or root signs a request with the header Fencing-Token, TOKEN.SEAL.
//
//	keys, err := credentials.ParseKeyring(os.Getenv("FENCEGATE_MASTER_KEY"))
//	srv, err := s3.New(s3.Deps{Pool: pool, Store: store, Keys: keys}, s3.Options{RootAccessKey: access, RootSecretKey: secret})
//	created, err := srv.Catalog().EnsureBucket(ctx, "orders", objects.PrefixRule(1)) // orders/1001/invoice.txt needs the resource orders/1001
//	go srv.Serve(ctx, listener)                                       // until ctx is done, then drains
//	creds, err := keys.Issue("orders/1001", 34, lease.Expires, 0)
//
// What is not there answers NotImplemented.
package s3
