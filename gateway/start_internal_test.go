package gateway

import (
	"slices"
	"testing"
)

func TestACauseOfSeveralChecksIsSaidOnce(t *testing.T) {
	t.Parallel()
	const cause = "leases of this database come from redis"
	found := []partText{{"postgres", ""}, {"leases", cause}, {"postgres", "verify: " + cause}, {"postgres", cause}, {"postgres", "verify: " + cause}, {"postgres", "away"}}
	if said, want := saidOnce(found), []string{"postgres: verify: " + cause, "postgres: away"}; !slices.Equal(said, want) {
		t.Errorf("said %q, want %q", said, want)
	}
}
