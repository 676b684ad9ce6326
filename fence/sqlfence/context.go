package sqlfence

import (
	"context"
	"slices"
	"strings"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/internal/core"
)

type presentedKey struct{}

// WithGrant returns a context that carries grants for the databases opened with [OpenDB], [Open] or [Connector]. A
// transaction that begins with this context presents exactly these grants until it ends, and so does a statement
// outside of a transaction. They replace the grants that ctx carries. Without arguments the context presents none.
//
// A malformed grant is reported by the first call that uses the context, as a [*fence.InvalidError].
func WithGrant(ctx context.Context, grants ...fence.Grant) context.Context {
	return context.WithValue(ctx, presentedKey{}, sorted(grants))
}

func sorted(grants []fence.Grant) []fence.Grant {
	return slices.SortedFunc(slices.Values(grants), func(a, b fence.Grant) int { return strings.Compare(a.Resource, b.Resource) })
}

// Grants returns the grants of [WithGrant], in the order of their resources.
func Grants(ctx context.Context) []fence.Grant { return slices.Clone(presented(ctx)) }

func presented(ctx context.Context) []fence.Grant {
	grants, _ := ctx.Value(presentedKey{}).([]fence.Grant)
	return grants
}

// agree refuses a statement whose context carries other grants than its transaction presents. A context without
// grants is accepted.
func agree(ctx context.Context, grants []fence.Grant) error {
	carried := presented(ctx)
	if len(carried) == 0 || slices.Equal(carried, grants) {
		return nil
	}
	under := "no grant"
	if len(grants) > 0 {
		under = core.Named(grants)
	}
	return &fence.InvalidError{
		Field:  "context",
		Reason: "carries " + core.Named(carried) + ", but its transaction began under " + under + ": begin the transaction with this context",
	}
}
