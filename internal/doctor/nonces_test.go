package doctor

import "testing"

func TestNoncesThatTakeAGigabyteAreNamed(t *testing.T) {
	t.Parallel()
	for size, want := range map[int64]Status{0: OK, manyNonces - 1: OK, manyNonces: Warn} {
		if f := judgeNonces("postgresql.nonces", size); f.Status != want || (f.Do == "") != (want == OK) {
			t.Errorf("%d MiB: %+v", size, f)
		}
	}
}
