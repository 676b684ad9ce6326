package runner

import "testing"

// The lines are of proc_pid_stat(5), up to the start time.
func TestAProcessWhoseThreadsGoOnIsNotOver(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]bool{
		"7 (a) b) Z 1 7 7 0 -1 4194308 0 0 0 0 0 0 0 0 20 0 3 0 9": false, // its first thread has ended, two go on
		"7 (a) b) Z 1 7 7 0 -1 4194308 0 0 0 0 0 0 0 0 20 0 1 0 9": true,
		"7 (a) b) X 1 7 7 0 -1 4194308 0 0 0 0 0 0 0 0 20 0 0 0 9": true,
		"7 (a) b) S 1 7 7 0 -1 4194308 0 0 0 0 0 0 0 0 20 0 1 0 9": false,
		"": false,
	} {
		if got := isOver(statOf([]byte(line))); got != want {
			t.Errorf("%q is over: %v, want %v", line, got, want)
		}
	}
}
