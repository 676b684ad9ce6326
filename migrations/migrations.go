// Package migrations holds the SQL that builds and removes what fencegate keeps
// in PostgreSQL, as golang-migrate pairs: NNNNNN_name.up.sql and
// NNNNNN_name.down.sql. Each file is one transaction, so that an interrupted
// migration has been applied entirely or not at all.
//
//	000001_fence_base     roles, the schema fence and its tables
//	000002_fence_check    the check: guard, use, check, check_issued
//	000003_fence_arm      raise, drain, revoke, epochs
//	000004_fence_protect  protect, unprotect and what they report
//	000010_objects        buckets, versions and pointers of the S3 gateway
//	000011_uploads        multipart uploads of the S3 gateway
//	000012_sweep          finds the bytes of blobs that nobody will ask for
//	000013_fence_report   judging without refusing: report mode
//	000014_fence_rows     a resource for each row, and the stamp
//	000015_fence_protect  protect, enforce, unprotect with all of that, also for views
//	000016_fence_schemas  whole schemas, and what is uncovered
//	000017_fence_events   event triggers, on demand, that keep protected what is
//	000018_fence_many     several grants in one transaction, several fences raised in one
//	000019_fence_outcome  what became of a COMMIT that was not answered
//	000020_identity       which server this is, invalidating all grants, waiting for a standby
//	000021_upgradable     no column that pg_upgrade refuses
//	000025_fence_arm      raise and drain in one transaction, where nobody is in the way
//	000030_object_tags     tags of objects, parts that are copied
//	000031_object_versions older versions: kept, listed, restored, removed, recorded
//	000032_object_rules    which resource a write of a key needs, by bucket and prefix
//	000033_publish         rows and files together: staged uploads, published in a transaction of a writer's own
//	000035_object_sweep    the sweep in short steps, whose blobs a store holds
//	000038_object_conditions conditions on what is overwritten or deleted, beside those of 000010
//	000039_object_plans    helpers of a write in a language whose plans are kept; an announcement that nobody waits for
//	000040_object_reserve  blobs that are announced ahead, many at once; the common case of an upload's commit
//	000041_bucket_documents documents of a bucket: CORS, tags, ownership, what is blocked from becoming public
//	000044_fence_shown     no refusal repeats a seal
//	000045_object_folders  a list under a delimiter reads through small folders, and jumps over large ones
//	000046_publish_if_match no if_match of a publication means the contrary
//	000047_fence_prepared   who is in the way of arming is named also where he is prepared; stamps in columns of any name
//	000048_object_lasting   what is answered lasts, also where only an earlier try wrote it; a grace is a whole one
package migrations

import "embed"

// FS holds every migration, at its root.
//
//go:embed *.sql
var FS embed.FS
