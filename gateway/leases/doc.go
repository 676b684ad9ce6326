// Package leases puts a source of leases between the ports of a gateway and the fence: what is granted is armed on the
// accepted PostgreSQL, announced, measured, and extended only while the fence agrees.
//
// An [Armer] stands between the source and the fence, a [Source] between the source and its callers. A [Ledger] knows
// which leases this gateway granted.
package leases
