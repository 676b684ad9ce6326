// Package ops holds the tests of what operators do to a database that has
// fences: dump and restore it, upgrade PostgreSQL under it, and take fencegate
// off it again. What they are to expect is in docs/operations.md.
//
// The guarantee that they test: after each of these a table that was guarded is
// guarded as before, or the operator was told that it is not; and no grant from
// before such a change is taken for a current one once fence.invalidate_all ran,
// which gateways insist on.
package ops
