// Package s3fence publishes files and rows together: an upload to the gateway's S3 port is staged, invisible to
// readers, and one PostgreSQL transaction makes it visible together with the rows that it writes.
//
// The guarantee: if the transaction commits, the rows and the files become visible at the same moment; if it does
// not, neither does. It commits only under the grant that the files were staged with. A writer whose lease is over
// changes nothing.
//
//	files, err := s3fence.New(s3fence.Config{ // or s3fence.FromEnv(os.LookupEnv), under fencegate run
//		Endpoint: creds.EndpointURL, AccessKeyID: creds.AccessKeyID, SecretAccessKey: creds.SecretAccessKey, SessionToken: creds.SessionToken,
//	})
//	staged, err := files.Stage(ctx, "reports", "2026-11.csv", file, size) // streams; holds no transaction
//	err = pgfence.InTx(ctx, pool, grant, func(tx pgx.Tx) error {
//		_, err := tx.Exec(ctx, "INSERT INTO reports VALUES ('2026-11', $1)", total)
//		if err != nil {
//			return err
//		}
//		return s3fence.Publish(ctx, tx, staged) // last: it locks the file's name until COMMIT
//	})
//	if errors.Is(err, fence.ErrUnknown) {
//		err = s3fence.Outcome(ctx, pool, staged) // nil: committed, rows and file
//	}
//
// A stage is published once. If a committed transaction is run again, it fails with [ErrPublished] and writes no row
// twice. The gateway's sweep deletes stages that are not published within a day.
//
// For database/sql there are [PublishSQL] and [OutcomeSQL]. Programs in other languages send the header
// Fencing-Stage: true with an ordinary S3 upload, read the stage's ID from the same header of the response, and call
// fence.publish in SQL.
package s3fence
