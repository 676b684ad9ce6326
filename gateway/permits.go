package gateway

import (
	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/gateway/pgwire"
)

// Permit replaces the rules of the PostgreSQL port, see [pgwire.Server.Permit]. On an error, a [*fence.InvalidError],
// nothing changes.
func (g *Gateway) Permit(rules []pgwire.Rule) error {
	if g.pg == nil {
		return &fence.InvalidError{Field: "PGListen", Reason: "is empty: there is no PostgreSQL port"}
	}
	return g.pg.Permit(rules)
}
