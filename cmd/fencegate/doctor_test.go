package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fencegate/fencegate/internal/testenv"
)

func TestDoctorWaitsForATimeThatPasses(t *testing.T) {
	t.Parallel()
	for _, patience := range []string{"0s", "-1s"} {
		if code, stdout, stderr := cli(t, nil, "doctor", "--blobs", t.TempDir(), "--patience", patience); code != exitUsage || stdout != "" || !strings.Contains(stderr, "--patience") {
			t.Errorf("%s: %d %q %q", patience, code, stdout, stderr)
		}
	}
}

func TestDoctorFromTheCommandLine(t *testing.T) {
	t.Parallel()
	pg := testenv.Postgres(t)
	vars := map[string]string{"FENCEGATE_POSTGRES_URL": pg.GatewayURL}
	code, stdout, stderr := cli(t, vars, "doctor", "--blobs", t.TempDir()) // the tests' server runs without fsync
	if code != exitFailed || !strings.Contains(stdout, "FAIL  postgresql.durability: fsync is off") || !strings.Contains(stdout, "OK    blobs.writable") || !strings.Contains(stdout, "→ ") {
		t.Errorf("%d\n%s%s", code, stdout, stderr)
	}
	code, stdout, _ = cli(t, vars, "doctor", "--json")
	var report struct {
		Status   string
		Findings []struct{ Check, Status, Found, Do string }
	}
	if err := json.Unmarshal([]byte(stdout), &report); err != nil || code != exitFailed || report.Status != "FAIL" || len(report.Findings) < 10 {
		t.Errorf("%d %v %+v", code, err, report)
	}
	config, err := pgx.ParseConfig(pg.GatewayURL)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(stdout, config.Password) {
		t.Error("the password was printed")
	}
	if code, _, _ := cli(t, vars, "doctor", "--postgres-url", "", "--blobs", t.TempDir()); code != exitOK {
		t.Errorf("a blob folder alone: %d", code)
	}
	if code, _, _ := cli(t, nil, "doctor"); code != exitUsage {
		t.Errorf("nothing to examine: %d", code)
	}
}
