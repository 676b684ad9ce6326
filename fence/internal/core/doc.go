// Package core is what pgfence and sqlfence share: the SQL statements, the checks of their arguments, and the
// interpretation of PostgreSQL's answers and of lost connections. It sends nothing itself; the driver packages do.
package core
