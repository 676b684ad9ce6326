package fault

import (
	"errors"
	"math/rand/v2"
	"testing"
)

// Damage is a finding, also if the output of the command begins with it. A store that failed is none.
func TestDamageIsTheOnlyFailureOfACommandThatIsFound(t *testing.T) {
	t.Parallel()
	for output, wrong := range map[string]bool{
		"MISSING\trobust\t\"r1-2/data\"\tversion 01\tblob not found\nverified 1 versions, 0 MiB, 1 wrong\n": true,
		"SIZE\trobust\t\"r1-2/data\"\tversion 01\tthe store has 2 bytes, but 3 are recorded\n":              true,
		"UNREADABLE\trobust\t\"a\"\tversion 01\trefused\nCONTENT\trobust\t\"b\"\tversion 02\tits MD5\n":     true,
		"fencegate: 3 blobs that versions list have no row; they were left alone\n":                         true,
		"UNREADABLE\trobust\t\"a\"\tversion 01\tconnection refused\n":                                       false,
		"fencegate: PostgreSQL did not answer\n":                                                            false,
	} {
		s := &Stage{World: newWorld(t), Rand: rand.New(rand.NewPCG(1, 2)), record: &record{}}
		err := s.repeat(t.Context(), 0, func() error {
			return errors.New("fencegate objects verify: exit status 1\n" + output)
		})
		if errors.Is(err, ErrWrong) != wrong || !wrong && !errors.Is(err, ErrNotDone) {
			t.Errorf("%q: %v", output, err)
		}
	}
}
