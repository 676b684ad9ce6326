package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/gateway/blob"
	"github.com/fencegate/fencegate/internal/testenv"
)

// objectsCLI runs a command below `objects`.
func objectsCLI(t *testing.T, vars map[string]string, args ...string) (string, error) {
	t.Helper()
	e := env{lookup: func(name string) (string, bool) { value, ok := vars[name]; return value, ok }}
	cmd := newObjects(e)
	var out bytes.Buffer
	cmd.SetOut(&out)
	cmd.SetErr(&out)
	cmd.SilenceUsage, cmd.SilenceErrors = true, true
	cmd.SetArgs(append(args, "--postgres-url", vars["FENCEGATE_POSTGRES_URL"]))
	err := cmd.ExecuteContext(t.Context())
	return out.String(), err
}

func TestObjectsAreListedAuditedAndRestoredFromTheCommandLine(t *testing.T) {
	t.Parallel()
	pg := testenv.Postgres(t)
	vars := map[string]string{"FENCEGATE_POSTGRES_URL": pg.GatewayURL}
	first := grant(t, pg.GatewayURL, "orders/1001", 5)
	write := func(token int) string {
		id, version := blob.NewID().String(), blob.NewID().String()
		runSQL(t, pg.GatewayURL,
			fmt.Sprintf("SELECT objects.begin_upload('%s', 'orders', '1001/x', 'orders/1001', %d, NULL)", id, token),
			fmt.Sprintf("SELECT objects.commit_upload('%s', 'orders', '1001/x', ARRAY['%s'::uuid], '{%d}', 'e%d', '{}', 'orders/1001', %d, NULL, NULL, NULL, false)",
				version, id, token, token, token))
		return version
	}
	runSQL(t, pg.GatewayURL, "SELECT objects.create_bucket('orders', 1)", "SELECT objects.set_keep('orders', NULL, NULL)")
	old := write(5)
	second := grant(t, pg.GatewayURL, "orders/1001", 6)
	write(6)
	if out, err := objectsCLI(t, vars, "ls", "orders", "1001/"); err != nil || !strings.Contains(out, `"1001/x"  6`) {
		t.Errorf("ls: %v\n%s", err, out)
	}
	if out, err := objectsCLI(t, vars, "versions", "orders"); err != nil || !strings.Contains(out, old) || strings.Count(out, "worker-a") != 2 {
		t.Errorf("versions: %v\n%s", err, out)
	}
	restoring := func(g fence.Grant) map[string]string {
		return map[string]string{"FENCEGATE_POSTGRES_URL": pg.GatewayURL, "FENCE_RESOURCE": g.Resource, "FENCE_TOKEN": g.Presented()}
	}
	for _, c := range []struct {
		vars    map[string]string
		version string
		code    int
	}{
		{vars, old, exitUsage},
		{restoring(first), old, 76},
		{restoring(second), "x", exitUsage},
		{restoring(second), strings.Repeat("0", 32), exitFailed},
		{restoring(grant(t, pg.GatewayURL, "orders/1002", 1)), old, exitForbidden},
	} {
		out, err := objectsCLI(t, c.vars, "restore", "orders", "1001/x", c.version)
		code, _ := classify(err)
		if err == nil || code != c.code {
			t.Errorf("restore %s: %v (%d), want exit code %d\n%s", c.version, err, code, c.code, out)
		}
		if err != nil && strings.Contains(err.Error()+out, second.Seal.Reveal()) {
			t.Error("a seal is shown")
		}
	}
	if out, err := objectsCLI(t, restoring(second), "restore", "orders", "1001/x", old); err != nil {
		t.Fatalf("restore: %v\n%s", err, out)
	}
	out, err := objectsCLI(t, vars, "audit", "orders", "1001/x", "--json")
	var records []shownObject
	if err == nil {
		err = json.Unmarshal([]byte(out), &records)
	}
	if err != nil || len(records) != 3 {
		t.Fatalf("audit: %v\n%s", err, out)
	}
	if r := records[0]; r.State != "latest" || r.Token != "6" || r.Origin != old || r.Size != 5 {
		t.Errorf("the restored version: %+v", r)
	}
	if r := records[2]; r.State != "kept" || r.Token != "5" || r.Holder != "worker-a" || r.Resource != "orders/1001" {
		t.Errorf("the first version: %+v", r)
	}
	if out, err := objectsCLI(t, vars, "audit", "orders", "1001/y"); err != nil || !strings.Contains(out, `no write of "1001/y" in bucket "orders" is on record`) {
		t.Errorf("audit of a key that was never written: %v\n%s", err, out)
	}
	for _, args := range [][]string{{"ls", "nowhere"}, {"versions", "nowhere"}, {"ls", "orders", "--limit", "0"}, {"restore", "orders"}} {
		if out, err := objectsCLI(t, vars, args...); err == nil {
			t.Errorf("%v: done\n%s", args, out)
		}
	}
}
