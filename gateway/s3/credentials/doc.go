// Package credentials makes and recognises the temporary S3 credentials of a lease.
//
// The guarantee: credentials that open are those that a keyring of the same master
// keys issued, for this resource and this fencing token. They hold no seal and open
// nothing by themselves: each write still has to find its token recorded as the newest.
//
//	keys, err := credentials.ParseKeyring(os.Getenv("FENCEGATE_MASTER_KEY"))
//	creds, err := keys.Issue("orders/1001", 34, lease.Expires, 0)
//	verified, err := keys.Verify(accessKey, sessionToken, time.Now())
//	key := verified.SigningKey("20261122", "us-east-1", "s3")
package credentials
