package main

import (
	"strings"
	"testing"
)

func TestDoctorWaitsForATimeThatPasses(t *testing.T) {
	t.Parallel()
	for _, patience := range []string{"0s", "-1s"} {
		if code, stdout, stderr := cli(t, nil, "doctor", "--blobs", t.TempDir(), "--patience", patience); code != exitUsage || stdout != "" || !strings.Contains(stderr, "--patience") {
			t.Errorf("%s: %d %q %q", patience, code, stdout, stderr)
		}
	}
}
