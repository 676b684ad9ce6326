package sqlfence

import (
	"context"
	"slices"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/internal/core"
)

// WithGrant returns a context that carries grants for a pool of package pgxsql. A transaction that begins with this
// context presents exactly these grants until it ends, and so does a statement outside of a transaction. They replace
// the grants that ctx carries. Without arguments the context presents none.
//
// A malformed grant is reported by the first call that uses the context, as a [*fence.InvalidError].
func WithGrant(ctx context.Context, grants ...fence.Grant) context.Context {
	return core.WithGrants(ctx, grants)
}

// Grants returns the grants of [WithGrant], in the order of their resources.
func Grants(ctx context.Context) []fence.Grant { return slices.Clone(core.Carried(ctx)) }
