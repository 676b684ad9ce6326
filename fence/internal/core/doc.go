// Package core is what pgfence and sqlfence share: the statements, the checks of their
// arguments, and what an answer of PostgreSQL, or its absence, means for a fence. It
// sends nothing: how a statement travels is the driver's business.
package core
