package api

import (
	"testing"
	"time"
)

func TestTheDefaultTTLIsCappedByMaxTTLOnly(t *testing.T) {
	t.Parallel()
	for given, want := range map[[2]time.Duration]time.Duration{ // DefaultTTL and MaxTTL
		{0, 0}:                          30 * time.Second,
		{time.Minute, 0}:                time.Minute,
		{time.Minute, 10 * time.Second}: 10 * time.Second,
		{0, 10 * time.Second}:           10 * time.Second,
		{0, time.Minute}:                30 * time.Second,
	} {
		if got := (Config{DefaultTTL: given[0], MaxTTL: given[1]}).withDefaults().DefaultTTL; got != want {
			t.Errorf("default %v, longest %v: %v; want %v", given[0], given[1], got, want)
		}
	}
}
