// Package s3fence publishes files and rows together: what was uploaded to the
// gateway's S3 port is staged, which shows it to nobody, and one PostgreSQL
// transaction makes it visible together with the rows that it writes.
//
// The guarantee: when that transaction commits, readers of the rows and readers
// of the files see both from the same moment on; when it does not, they see
// neither. It commits only under the grant that the files were staged with. A
// writer whose lease is over changes nothing.
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
// A stage is published once. So a transaction that is run again although it had
// been committed fails with [ErrPublished] and writes no row twice. What is staged and never
// published goes with the gateway's sweep, after a day.
//
// For database/sql there are [PublishSQL] and [OutcomeSQL]. Other languages send the
// header Fencing-Stage: true with an ordinary S3 upload, take the stage's id from
// the same header of the answer, and call fence.publish in SQL.
package s3fence
