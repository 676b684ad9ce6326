// Package fencedsql runs SQL that comes by HTTP, under a grant.
//
// The guarantee: the statements of one request run in one transaction that
// begins with the fence's check of the grant. Either all of it is committed
// while the grant is current, or none of it.
//
//	runner, err := fencedsql.New(fencedsql.Config{URL: url}) // a login that is fence_writer only
//	if err != nil {
//		return err
//	}
//	defer runner.Close()
//	results, err := runner.Run(ctx, grant, []wire.Statement{{SQL: "UPDATE orders SET paid = true WHERE id = $1", Args: args}})
//
// # Values
//
// Arguments go to PostgreSQL as text, for the server to read as the types that
// the statement asks for, so no number loses a digit: a number as it stood in
// the request, a string, true and false, null as NULL; an object as jsonb; an
// array as a PostgreSQL array where the parameter is one, else as JSON. Where a
// statement leaves a parameter's type open, cast it: $1::int8.
//
// In the results, bool, int2, int4, oid and finite floats are JSON's own; json
// and jsonb are embedded; everything else is a string in PostgreSQL's text form.
// That includes int8 and numeric: most readers of JSON hold numbers as doubles
// and would change values beyond 2^53 in silence.
//
// # What is refused, and what protects where a refusal can be got around
//
// A request is one transaction, so commands that end it or work outside of it
// (COMMIT, ROLLBACK, savepoints, PREPARE TRANSACTION), that change who acts (SET
// ROLE, SET SESSION AUTHORIZATION), what it may write (SET fence.*, RESET), who
// may do what (GRANT, REVOKE, roles), the encoding of the answer, or
// what the next request finds (DISCARD, PREPARE) are refused, and so is COPY. The
// check reads a statement's first words as PostgreSQL's scanner would, behind
// comments and empty statements; the extended protocol takes one command only.
//
// That is for clear errors, not for safety. A client can hide a command in a DO
// block, a procedure or set_config('fence.token', …). It gains nothing:
//   - COMMIT and ROLLBACK in a DO block or a procedure fail, because PostgreSQL
//     allows them only outside of a transaction block, and every request is one.
//   - The settings of the grant hold for the transaction. Were it ended all the
//     same, the next write would come without a grant and get ZF002.
//   - Whatever set_config puts in their place is checked like any grant, with its
//     seal, by the trigger on each guarded statement. A client that knows a current
//     seal is that holder; one that does not gets ZF001 or ZF003.
//   - The login is a member of fence_writer only and owns no guarded table, so
//     there is no role to change to that could write around the triggers, and no
//     guard that it could take away; the gateway is not ready otherwise.
//   - What a session keeps beyond its transaction (settings, temporary tables,
//     locks) is discarded before another request gets the connection; if that
//     fails, the connection is closed.
//
// What all requests share is their login, and PostgreSQL lets a login act on
// itself: a hidden command can change its password and its defaults (ALTER ROLE
// CURRENT_USER), see the statements of the other requests in pg_stat_activity,
// and end their sessions. That can stop these requests, and reads of what others
// write must be kept from clients by other means; it lets no stale write through.
package fencedsql
