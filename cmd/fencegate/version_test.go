package main

import (
	"encoding/json"
	"strings"
	"testing"
)

func TestTheVersionIsPrinted(t *testing.T) {
	t.Parallel()
	if code, stdout, stderr := cli(t, nil, "version"); code != exitOK || !strings.HasPrefix(stdout, "fencegate ") || !strings.Contains(stdout, "generation ") {
		t.Errorf("%d %q %q", code, stdout, stderr)
	}
	code, stdout, _ := cli(t, nil, "version", "--json")
	var v versionInfo
	if err := json.Unmarshal([]byte(stdout), &v); code != exitOK || err != nil || v.Version == "" || v.Program == 0 {
		t.Errorf("%d %q %v", code, stdout, err)
	}
}
