// Package credentials makes and verifies the temporary S3 credentials of a lease.
//
// The guarantee: credentials that verify were issued by a keyring of the same master keys, for this resource and this
// fencing token. They contain no seal and authorize nothing by themselves: each write still needs its token to be the
// recorded one.
//
//	keys, err := credentials.ParseKeyring(os.Getenv("FENCEGATE_MASTER_KEY"))
//	creds, err := keys.Issue("orders/1001", 34, lease.Expires, 0)
//	verified, err := keys.Verify(accessKey, sessionToken, time.Now())
//	key := verified.SigningKey("20261122", "us-east-1", "s3")
package credentials
