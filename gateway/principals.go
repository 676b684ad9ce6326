package gateway

import (
	"cmp"
	"slices"
	"sync/atomic"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/gateway/access"
	"github.com/fencegate/fencegate/gateway/s3"
)

// reloads records whether the last change of the principals was refused.
type reloads struct{ refused atomic.Bool }

func (r *reloads) last() int64 {
	if r.refused.Load() {
		return 0
	}
	return 1
}

// errUnverified refuses principals that no client could authenticate as.
var errUnverified = &fence.InvalidError{
	Field: "APITLSClientCA", Reason: "is missing: principals are known by certificates that nobody would verify",
}

// SetPrincipals replaces the principals of a gateway that has some, also for requests and streams under way. read
// returns them. If read fails or they are invalid, nothing changes, and the metrics say so until a later change
// succeeds.
func (g *Gateway) SetPrincipals(read func() ([]access.Definition, []access.Option, error)) error {
	if g.cfg.Principals == nil {
		return &fence.InvalidError{Field: "Principals", Reason: "are none: the gateway was started without"}
	}
	all, opts, err := read()
	certified := func(d access.Definition) bool { return len(d.Certificates) > 0 }
	if err == nil && g.cfg.APITLSClientCA == "" && slices.ContainsFunc(all, certified) {
		err = errUnverified
	}
	var change access.Change
	if err == nil {
		change, err = g.cfg.Principals.Replace(all, opts...)
	}
	g.reloads.refused.Store(err != nil)
	if err == nil {
		g.log.Info("the principals were replaced", "principals", len(all), "added", change.Added, "changed", change.Changed, "removed", change.Removed)
	}
	return err
}

// access describes for the log how the API authenticates callers.
func (g *Gateway) access() string {
	switch {
	case g.cfg.Principals != nil:
		return "principals"
	case g.cfg.API.BearerToken != "":
		return "token"
	}
	return "everybody"
}

// rights are the rights that the S3 port checks; nil without principals.
func (g *Gateway) rights() s3.Rights {
	if g.cfg.Principals == nil {
		return nil
	}
	return g.cfg.Principals
}

// perPrincipal is how many of the SQL connections one principal may use; 0: all.
func (g *Gateway) perPrincipal() int {
	if g.cfg.Principals == nil {
		return 0
	}
	return (cmp.Or(g.cfg.SQLConnections, defaultSQLConnections) + 1) / 2
}

// defaultSQLConnections is the default of [fencedsql.Config].
const defaultSQLConnections = 8
