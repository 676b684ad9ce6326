package core

import (
	"context"
	"slices"
	"strings"

	"github.com/fencegate/fencegate/fence"
)

type presentedKey struct{}

// WithGrants returns a context that carries exactly these grants.
func WithGrants(ctx context.Context, grants []fence.Grant) context.Context {
	return context.WithValue(ctx, presentedKey{}, sorted(grants))
}

// Carried are the grants of [WithGrants], in the order of their resources.
func Carried(ctx context.Context) []fence.Grant {
	grants, _ := ctx.Value(presentedKey{}).([]fence.Grant)
	return grants
}

// Agree refuses a statement whose context carries other grants than its transaction presents. A context without
// grants is accepted.
func Agree(ctx context.Context, grants []fence.Grant) error {
	carried := Carried(ctx)
	if len(carried) == 0 || slices.Equal(carried, sorted(grants)) {
		return nil
	}
	under := "no grant"
	if len(grants) > 0 {
		under = GrantNames(grants)
	}
	return &fence.InvalidError{
		Field:  "context",
		Reason: "carries " + GrantNames(carried) + ", but its transaction began under " + under + ": begin the transaction with this context",
	}
}

func sorted(grants []fence.Grant) []fence.Grant {
	return slices.SortedFunc(slices.Values(grants), func(a, b fence.Grant) int { return strings.Compare(a.Resource, b.Resource) })
}
