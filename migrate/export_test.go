package migrate

import (
	"context"
	"io"

	"github.com/fencegate/fencegate/migrations"
)

// Kit is a program's sets, which a test may make up.
type Kit []migrations.Set

func (k Kit) Up(ctx context.Context, url string, which Set) error { return kit(k).up(ctx, url, which) }

func (k Kit) Down(ctx context.Context, url string, which Set, force bool) error {
	return kit(k).down(ctx, url, which, force)
}

func (k Kit) Look(ctx context.Context, url string, which Set) (Status, error) {
	return kit(k).lookAt(ctx, url, which)
}

func (k Kit) WriteSQL(w io.Writer, which Set, from int) error { return kit(k).writeSQL(w, which, from) }
