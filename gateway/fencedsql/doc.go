// Package fencedsql runs SQL from HTTP requests under a grant.
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
//	pay := wire.Statement{SQL: "UPDATE orders SET paid = true WHERE id = $1", Args: args}
//	results, err := runner.Run(ctx, grant, []wire.Statement{pay})
//
// # Values
//
// Arguments go to PostgreSQL as text, and the server parses them as the types that the statement needs, so no number
// loses a digit: a number as written in the request, a string, true and false, null as NULL; an object as jsonb; an
// array as a PostgreSQL array for an array parameter, else as JSON. If a statement leaves a parameter's type open, cast
// it: $1::int8.
//
// In the results, bool, int2, int4, oid and finite floats are JSON's own types; json and jsonb are embedded; everything
// else is a string in PostgreSQL's text form. That includes int8 and numeric: many JSON parsers store numbers as
// doubles and would silently change values beyond 2^53.
//
// # What is refused, and what protects against evasion
//
// A request is one transaction. So these commands are refused: those that end it or work outside it (COMMIT, ROLLBACK,
// savepoints, PREPARE TRANSACTION), that change the role (SET ROLE, SET SESSION AUTHORIZATION), the grant (SET fence.*,
// RESET), privileges (GRANT, REVOKE, roles), the encoding of the answer, or the state of the session for the next
// request (DISCARD, PREPARE), and COPY. The check reads a statement's first words as PostgreSQL's scanner would, after
// comments and empty statements; the extended protocol accepts only one command.
//
// That is for clear errors, not for safety. A client can hide a command in a DO
// block, a procedure or set_config('fence.token', …). It gains nothing:
//   - COMMIT and ROLLBACK in a DO block or a procedure fail, because PostgreSQL
//     allows them only outside a transaction block, and every request is one.
//   - The settings of the grant last for the transaction. If a command ended the
//     transaction nevertheless, the next write would have no grant and get ZF002.
//   - The trigger on each guarded table checks whatever set_config sets like any
//     grant, with its seal. A client that knows a current seal is that holder; any
//     other gets ZF001 or ZF003.
//   - The login is a member of fence_writer only and owns no guarded table, so
//     there is no role to change to that could write around the triggers, and it cannot
//     drop a guard; otherwise the gateway is not ready.
//   - What a session keeps beyond its transaction (settings, temporary tables,
//     locks) is discarded before another request gets the connection; if that
//     fails, the connection is closed.
//
// All requests share their login, and PostgreSQL lets a login act on itself: a hidden command can change its password
// and its defaults (ALTER ROLE CURRENT_USER), see the statements of the other requests in pg_stat_activity, and end
// their sessions. That can stop these requests, and other means must keep clients from reading what others write; it
// lets no stale write through.
package fencedsql
