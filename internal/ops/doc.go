// Package ops tests what operators do to a database with fences: dump and restore it, upgrade PostgreSQL under it, and
// remove fencegate from it. docs/operations.md describes what they should expect.
//
// The guarantee under test: after each of these a guarded table is guarded as before, or the operator is notified that
// it is not. No grant from before such a change is accepted as current once fence.invalidate_all has run, which
// gateways require.
package ops
