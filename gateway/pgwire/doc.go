// Package pgwire is the PostgreSQL port of the gateway: a session-mode relay
// that any driver can use unchanged.
//
// The guarantee: what a client sends reaches PostgreSQL byte for byte, in
// order, and the other way round. The relay edits no SQL, holds no password and
// decides nothing about a write; the fence in PostgreSQL does that, by the
// grant that the connection's startup options carry. When the relay is asked to
// stop, a session is ended between two transactions, with FATAL 57P01, for as
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
// A client then connects with, say,
//
//	PGOPTIONS='-c fence.resource=orders/1001 -c fence.token=34.<seal>' psql -h 127.0.0.1 -p 6432 shop
//
// Two kinds of startup packet are changed on their way: that of a lease login
// (fence.lease, see [Leases]), which gets its grant in place of that option, and that
// of a session which a [Rule] starts read-only. No statement passes before a session
// is open; until then it can be refused, FATAL, but never before it has logged in.
//
// A session is bound to the grant in its startup options. Where the relay is told
// what the fence records, it ends a session, FATAL ZF001, once a newer grant is
// recorded: at once for grants that this gateway arms, within a second for others.
// Then PostgreSQL rolls back, and what the session had locked without a check
// (SELECT FOR UPDATE, LOCK TABLE) is free for the next holder. A statement that
// is running then is stopped. A client that takes several grants, one after the
// other, in one session leaves them out of the startup options and calls
// fence.use in each transaction.
//
// The messages' formats are those of the PostgreSQL manual, chapter
// "Frontend/Backend Protocol", versions 3.0 and 3.2.
package pgwire
