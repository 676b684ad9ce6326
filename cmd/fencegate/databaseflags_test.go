package main

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencegate/fencegate/internal/testenv"
)

func TestALookThatIsNotAnsweredEnds(t *testing.T) {
	t.Parallel()
	d := databaseFlags{url: testenv.PostgresEmpty(t).URL, limit: 300 * time.Millisecond}
	err := d.read(t.Context(), func(ctx context.Context, pool *pgxpool.Pool) error {
		_, err := pool.Exec(ctx, "SELECT pg_sleep(60)")
		return err
	})
	if code, hint := classify(err); code != exitUnavailable || !strings.Contains(err.Error(), "has not answered within 300ms") || !strings.Contains(hint, "nothing was changed") {
		t.Errorf("%v, %d %q", err, code, hint)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := d.read(ctx, func(ctx context.Context, _ *pgxpool.Pool) error { return ctx.Err() }); !errors.Is(err, context.Canceled) || errors.Is(err, errNoAnswer) {
		t.Errorf("interrupted: %v", err)
	}
}
