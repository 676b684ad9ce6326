package pgfence

import (
	"context"
	"fmt"

	"github.com/fencegate/fencegate/fence/internal/core"
)

// Raised reports whether any fence was ever raised in this database.
func (f *Fence) Raised(ctx context.Context) (raised bool, err error) {
	if err = f.pool.QueryRow(ctx, core.SQLRaised).Scan(&raised); err != nil {
		return false, fmt.Errorf("ask whether a fence was ever raised: %w", Translate(err))
	}
	return raised, nil
}
