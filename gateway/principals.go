package gateway

import (
	"cmp"
	"log/slog"
	"slices"
	"sync/atomic"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/gateway/access"
)

// errUnverified refuses principals that no client could authenticate as.
var errUnverified = &fence.InvalidError{
	Field: "APITLSClientCA", Reason: "is missing: principals are known by certificates that nobody would verify",
}

// principals say who may do what, and can be replaced.
type principals struct {
	*access.Principals

	verified bool // clients' certificates are
	log      *slog.Logger
	refused  atomic.Bool // the last change was
}

func (p *principals) replace(read func() ([]access.Definition, []access.Option, error)) error {
	all, opts, err := read()
	certified := func(d access.Definition) bool { return len(d.Certificates) > 0 }
	if err == nil && !p.verified && slices.ContainsFunc(all, certified) {
		err = errUnverified
	}
	var change access.Change
	if err == nil {
		change, err = p.Replace(all, opts...)
	}
	p.refused.Store(err != nil)
	if err == nil {
		p.log.Info("the principals were replaced", "principals", len(all), "added", change.Added, "changed", change.Changed, "removed", change.Removed)
	}
	return err
}

// lastReload is 0 if the last change was refused, and otherwise 1.
func (p *principals) lastReload() int64 {
	if p.refused.Load() {
		return 0
	}
	return 1
}

// accessBy describes for the log how the API authenticates callers.
func accessBy(principals bool, token string) string {
	switch {
	case principals:
		return "principals"
	case token != "":
		return "token"
	}
	return "everybody"
}

// defaultSQLConnections is the default of [fencedsql.Config].
const defaultSQLConnections = 8

// perPrincipal is how many of the SQL connections one principal may use.
func perPrincipal(connections int) int {
	return (cmp.Or(connections, defaultSQLConnections) + 1) / 2
}
