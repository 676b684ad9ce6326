package pgfence

import (
	"cmp"
	"errors"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencegate/fencegate/fence/internal/core"
)

// Translate adds the facts to a refusal by PostgreSQL's fence: for SQLSTATEs ZF001 to ZF005 the result is a
// [*fence.StaleError], [*fence.NoGrantError], [*fence.NeverIssuedError], [*fence.WrongResourceError] or
// [*fence.UndrainedError] for errors.As, and the matching sentinel for errors.Is. The original error stays in the chain
// and provides the text. Other errors, and nil, are returned unchanged.
func Translate(err error) error { return reports.Translate(err) }

// ended is [core.Reports.Ended].
func ended(err error) bool { return reports.Ended(err) }

// reports reads PostgreSQL's report from an error of pgx.
var reports core.Reports = func(err error) (core.Report, bool) {
	var pg *pgconn.PgError
	if !errors.As(err, &pg) {
		return core.Report{}, false
	}
	return core.Report{SQLState: pg.Code, Detail: pg.Detail, Severity: cmp.Or(pg.SeverityUnlocalized, pg.Severity)}, true
}
