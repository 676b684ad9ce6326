// Package pgwire is the PostgreSQL port of the gateway: a session-mode relay
// that any driver can use unchanged.
//
// The guarantee: what a client sends reaches PostgreSQL unchanged and in order, and vice versa. The relay edits no SQL,
// holds no password and decides nothing about a write; the fence in PostgreSQL decides by the grant in the connection's
// startup options. When the relay is asked to stop, it ends sessions between two transactions, with FATAL 57P01, for as
// long as the drain timeout allows.
//
//	srv, err := pgwire.New(pgwire.Config{Addr: "127.0.0.1:5432", Database: "shop"})
//	if err != nil {
//		return err // *fence.InvalidError: names the field
//	}
//	ln, err := net.Listen("tcp", "127.0.0.1:6432")
//	if err != nil {
//		return err
//	}
//	return srv.Serve(ctx, ln) // until ctx ends and the sessions are drained
//
// A client then connects with, for example,
//
//	PGOPTIONS='-c fence.resource=orders/1001 -c fence.token=34.<seal>' psql -h 127.0.0.1 -p 6432 shop
//
// The relay changes one kind of startup packet: it adds an option for a session that a [Rule] starts read-only. No
// statement passes before a session is open. Until then it can be refused, FATAL, but only after it has logged in.
//
// A session is bound to the grant in its startup options. If the relay can ask the fence, it ends a session, FATAL
// ZF001, once a newer grant is recorded: at once for grants that this gateway arms, within a second for others.
// PostgreSQL then rolls back, and locks that the session took without a check (SELECT FOR UPDATE, LOCK TABLE) are free
// for the next holder. A running statement is cancelled. A client that uses several grants one after the other in one
// session omits them from the startup options and calls fence.use in each transaction.
//
// The message formats are those of the PostgreSQL manual, chapter "Frontend/Backend Protocol", versions 3.0 and 3.2.
package pgwire
