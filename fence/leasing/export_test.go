package leasing

import (
	"context"
	"time"

	"github.com/fencegate/fencegate/fence"
)

// DoBy is Do by another clock.
func DoBy(
	ctx context.Context, now func() time.Time, source Source, r Request, work func(context.Context, fence.Grant) error,
) error {
	return do(ctx, now, source, r, DefaultRenewal, work)
}
