package doctor

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
)

const (
	// Both are identified by function and event, since their names can
	// be changed. A trigger for some commands only does not count.
	sqlEventTriggers = `SELECT w.name, coalesce(e.evtname::text, ''), coalesce(e.evtenabled::text, '')
  FROM (VALUES ('keep', 'ddl_command_end'), ('keep_dropped', 'sql_drop')) w(name, event)
  LEFT JOIN pg_proc p ON p.pronamespace = to_regnamespace('fence_events') AND p.proname = w.name AND p.prorettype = 'event_trigger'::regtype
  LEFT JOIN pg_event_trigger e ON e.evtfoid = p.oid AND e.evttags IS NULL AND e.evtevent = w.event ORDER BY 1`

	// A member of fence_owner can replace such a function, and everyone's commands run it.
	sqlOwnersTriggers = `SELECT e.evtname::text, p.oid::regprocedure::text FROM pg_event_trigger e JOIN pg_proc p ON p.oid = e.evtfoid
 WHERE p.proowner = to_regrole('fence_owner') OR p.proowner = to_regrole('fence_events') ORDER BY 1`

	// Faults of the event triggers' functions, and of the role fence_events.
	sqlEventFaults = `SELECT format('the role fence_events has the member %s', m.member::regrole), format('REVOKE fence_events FROM %s;', m.member::regrole)
  FROM pg_auth_members m WHERE m.roleid = to_regrole('fence_events')
   AND m.member <> (SELECT n.nspowner FROM pg_namespace n WHERE n.nspname = 'fence_events')
UNION ALL
SELECT format('the role fence_events is in %s', m.roleid::regrole), format('REVOKE %s FROM fence_events;', m.roleid::regrole)
  FROM pg_auth_members m WHERE m.member = to_regrole('fence_events') AND m.roleid <> to_regrole('fence_protector')
UNION ALL
SELECT format('the schema fence_events has %s, of %s', p.oid::regprocedure, p.proowner::regrole), format('DROP ROUTINE %s;', p.oid::regprocedure)
  FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
 WHERE n.nspname = 'fence_events' AND p.proowner NOT IN (n.nspowner, to_regrole('fence_events'))
ORDER BY 1`

	sqlEventsOutdated = `SELECT coalesce(obj_description(to_regnamespace('fence_events'), 'pg_namespace') <> 'fencegate event triggers ' || fence.event_hash(), false)`
)

type eventTrigger struct{ Calls, Name, Enabled string }

func checkEventTriggers(ctx context.Context, conn *pgx.Conn) Finding {
	const check = "postgresql.event-triggers"
	const install = "As a superuser, or as what your provider gives for one: fencegate fence events install"
	owners, err := collect[fault](ctx, conn, sqlOwnersTriggers)
	if err != nil {
		return unseen(check, err)
	} else if len(owners) > 0 {
		return fail(check, fmt.Sprintf("the event trigger %s runs %s, a function that members of fence_owner can replace, with the rights of whoever runs the command", owners[0].Found, owners[0].Do), install)
	}
	triggers, err := collect[eventTrigger](ctx, conn, sqlEventTriggers)
	if err != nil {
		return unseen(check, err)
	}
	var names, missing, weak []string
	for _, t := range triggers {
		switch {
		case t.Name == "":
			missing = append(missing, "the one that calls fence_events."+t.Calls)
			continue
		case t.Enabled != "A":
			weak = append(weak, t.Name)
		}
		names = append(names, t.Name)
	}
	switch {
	case len(names) == 0:
		return warn(check, "none: a table's owner can take a guard off, and new partitions come without one, until somebody looks at fence.uncovered",
			install+". Without: look regularly with fencegate fence uncovered.")
	case len(missing) > 0:
		return fail(check, "missing: "+strings.Join(missing, ", "), install)
	case len(weak) > 0:
		return fail(check, "disabled, or not in every session (ENABLE ALWAYS): "+strings.Join(weak, ", "), fmt.Sprintf("ALTER EVENT TRIGGER %s ENABLE ALWAYS;", pgx.Identifier{weak[0]}.Sanitize()))
	}
	return checkEventCode(ctx, conn, check, install, names)
}

// checkEventCode checks the functions of the existing event triggers.
func checkEventCode(ctx context.Context, conn *pgx.Conn, check, install string, names []string) Finding {
	faults, err := collect[fault](ctx, conn, sqlEventFaults)
	if err != nil {
		return unseen(check, err)
	} else if len(faults) > 0 {
		return fail(check, faults[0].Found+", so somebody could replace a function that runs with the rights of other users", faults[0].Do)
	}
	var outdated bool
	if err := conn.QueryRow(ctx, sqlEventsOutdated).Scan(&outdated); err != nil {
		return unseen(check, err)
	} else if outdated {
		return warn(check, "they run functions of another version than the schema's, which go on working", install)
	}
	return ok(check, "%s", strings.Join(names, ", "))
}
