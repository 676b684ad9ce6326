// Package s3 serves shared files on the S3 API, fenced.
//
// The guarantee: an upload or a deletion takes effect only while the writer's fencing token is the recorded one. The
// bytes go to a blob store under an id of their own; then one PostgreSQL transaction checks the fence and swaps the
// pointer from the key to the new version. A writer whose lease is over gets 412 StaleFencingToken, and the object is
// unchanged. The guarantee does not depend on clocks.
//
// Access: every client with credentials, also those of a lease, reads everything; there are no rules for reading. The
// root credentials read, and manage buckets, but on their own write no object. Writes need the temporary credentials of
// a lease, which [credentials.Keyring.Issue] makes without keeping state, so ordinary environment variables fence every
// SDK and tool. The credentials contain the resource and the token, never the seal. Alternatively root signs a request
// with the header Fencing-Token, TOKEN.SEAL.
//
//	keys, err := credentials.ParseKeyring(os.Getenv("FENCEGATE_MASTER_KEY"))
//	options := s3.Options{RootAccessKey: access, RootSecretKey: secret}
//	srv, err := s3.New(s3.Deps{Pool: pool, Store: store, Keys: keys}, options)
//	// orders/1001/invoice.txt needs the resource orders/1001
//	created, err := srv.Catalog().EnsureBucket(ctx, "orders", objects.PrefixRule(1))
//	go srv.Serve(ctx, listener) // until ctx is done, then drains
//	creds, err := keys.Issue("orders/1001", 34, lease.Expires, 0)
//
// Other operations answer NotImplemented.
package s3
