//go:build unix

package leases

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/pgfence"
	"github.com/fencegate/fencegate/internal/testenv"
)

// accepted is a PostgreSQL that stays the accepted one.
type accepted struct{ Primary }

func (accepted) Arming(_ context.Context, arm func() error) error { return arm() }

// uncounted counts nothing.
type uncounted struct{}

func (uncounted) Armed(int, time.Duration, error) {}
func (uncounted) Granted()                        {}

// While another session keeps the turn of a resource, arming fails and the fence stays where it is.
func TestAnArmingThatRaisedNothingIsNotAnnounced(t *testing.T) {
	t.Parallel()
	pg := testenv.Postgres(t)
	var announced []string
	a := Armer{
		Armer:   pgfence.New(testenv.PoolOf(t, pg.GatewayURL), pgfence.WithDrainLimit(300*time.Millisecond)),
		Primary: accepted{}, Metrics: uncounted{}, Ledger: NewLedger(),
		Announce: func(resource string, _ fence.Token) { announced = append(announced, resource) },
	}
	to := func(token fence.Token) fence.Arming {
		return fence.Arming{Resource: "a", Token: token, SealHash: fence.NewSeal().Hash(), Holder: "test"}
	}
	if err := a.Arm(t.Context(), to(1)); err != nil || len(announced) != 1 {
		t.Fatalf("the first arming: %v, announced %q", err, announced)
	}
	turn, err := pg.Pool(t).Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := turn.Exec(t.Context(), `SELECT FROM fence.arms WHERE resource = 'a' FOR UPDATE`); err != nil {
		t.Fatal(err)
	}
	for name, err := range map[string]error{"one": a.Arm(t.Context(), to(2)), "several": a.Arm(t.Context(), to(3), fence.Arming{Resource: "b", Token: 1, SealHash: fence.NewSeal().Hash()})} {
		if undrained, ok := errors.AsType[*fence.UndrainedError](err); !ok || undrained.Token != 0 {
			t.Errorf("%s: %v; want that the fence was not raised", name, err)
		}
	}
	if len(announced) != 1 {
		t.Errorf("announced %q, although only the first arming raised a fence", announced)
	}
	if err := turn.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !raised(&fence.UndrainedError{Resource: "a", Token: 2}) {
		t.Error("a fence that is raised and not drained does not count as raised")
	}
}
