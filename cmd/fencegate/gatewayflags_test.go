package main

import (
	"strings"
	"testing"
)

func TestATokenThatNoHeaderMayHoldIsRefusedWithoutBeingShown(t *testing.T) {
	t.Parallel()
	for _, token := range []string{"geheim\nX-Other: 1", "geheim\r", "ge\x00heim", "\x7fgeheim"} {
		code, _, stderr := cli(t, map[string]string{"FENCEGATE_TOKEN": token}, "resources", "show", "r", "--gateway", "http://127.0.0.1:1")
		if code != exitUsage || !strings.Contains(stderr, "FENCEGATE_TOKEN") || strings.Contains(stderr, "heim") {
			t.Errorf("%q: %d %q", token, code, stderr)
		}
	}
}
