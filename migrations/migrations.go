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
package migrations

import "embed"

// FS holds every migration, at its root.
//
//go:embed *.sql
var FS embed.FS
