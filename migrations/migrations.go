// Package migrations holds fencegate's SQL for PostgreSQL, in two sets: fence, and objects, which needs the fence.
//
// Each set has two parts:
//
//	state/  tables, types, indexes, roles: golang-migrate pairs NNNNNN_name.up.sql and
//	        .down.sql, each one transaction; until the first version, the baseline alone
//	code/   functions and views: one current text each, in files by topic, with its rights
//	        beside it; manifest.txt has their order, revision and hash
//
// Package migrate applies them. schema.sql shows the result. docs/schema.md describes how to change them.
package migrations

import "embed"

// FS holds both sets, at fence/ and objects/.
//
//go:embed fence/state/*.sql fence/code/*.sql fence/code/manifest.txt
//go:embed objects/state/*.sql objects/code/*.sql objects/code/manifest.txt
var FS embed.FS
