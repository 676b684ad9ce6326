package main

import (
	"crypto/md5"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fencegate/fencegate/gateway/blob"
	"github.com/fencegate/fencegate/internal/testenv"
)

// storeStep is a command about the blob store, after those before it.
type storeStep struct {
	args []string
	code int
	want string // in the output
}

// sweepsAndVerifications are commands about a store in which one of three versions is superseded.
func sweepsAndVerifications(folder string) []storeStep {
	return []storeStep{
		{[]string{"sweep", "--dry-run", "--superseded-age", "1us"}, exitOK, "would have adopted 0 unknown blobs, let 0 old versions go, forgot 0 records of writes, condemned 1 blobs"},
		{[]string{"sweep"}, exitFailed, "hint: give --superseded-age: the longest --sweep-grace of the gateways"},
		{[]string{"sweep", "--superseded-age", "168h"}, exitOK, "condemned 0 blobs, deleted the bytes of 0"},
		{[]string{"sweep"}, exitOK, "condemned 0 blobs, deleted the bytes of 0"},
		{[]string{"sweep", "--superseded-age", "1us"}, exitOK, "stay for 168h0m0s, the grace that is recorded; --shorten-grace changes it"},
		{[]string{"sweep", "--shorten-grace"}, exitUsage, "--shorten-grace needs --superseded-age"},
		{[]string{"sweep", "--superseded-age", "1us", "--shorten-grace", "--dry-run"}, exitOK, "condemned 1 blobs, deleted their bytes, and those of blobs that were condemned before"},
		{[]string{"sweep", "--superseded-age", "1us", "--shorten-grace", "--rate", "50", "--unknown", "--json"}, exitOK, `"deleted": 1`},
		{[]string{"verify"}, exitOK, "verified 2 versions, 0 MiB, 0 wrong"},
		{[]string{"verify", "orders", "1001/", "--kept", "--rate", "1", "--json"}, exitOK, `"findings": []`},
		{[]string{"claim"}, exitOK, "is this database's"},
		{[]string{"sweep", "--rate", "-1"}, exitUsage, ""},
		{[]string{"sweep", "--pending-age", "0s"}, exitUsage, ""},
		{[]string{"sweep", "--blobs", ""}, exitUsage, ""},
		{[]string{"sweep", "--blobs", "s3://key:secret@bucket"}, exitUsage, ""},
		{[]string{"verify", "--sample", "0"}, exitUsage, ""},
		{[]string{"verify", "--after", "x"}, exitUsage, ""},
		{[]string{"verify", "nowhere"}, exitFailed, "hint: see fencegate buckets ls"},
		{[]string{"verify", "--blobs", folder + "-mistyped"}, exitUsage, "-mistyped: no such file"},
		{[]string{"sweep", "--blobs", "dir:" + folder + "-mistyped"}, exitUsage, "-mistyped: no such file"},
	}
}

func TestBlobsAreSweptAndVerifiedFromTheCommandLine(t *testing.T) {
	t.Parallel()
	pg := testenv.Postgres(t)
	folder := t.TempDir()
	vars := map[string]string{"FENCEGATE_POSTGRES_URL": pg.GatewayURL, "FENCEGATE_BLOBS": folder}
	store, err := blob.OpenDir(folder)
	if err != nil {
		t.Fatal(err)
	}
	grant(t, pg.GatewayURL, "orders/1001", 5)
	runSQL(t, pg.GatewayURL, "SELECT objects.create_bucket('orders', 1)")
	write := func(key, data string) blob.ID {
		id, sum := blob.NewID(), md5.Sum([]byte(data))
		runSQL(t, pg.GatewayURL, fmt.Sprintf("SELECT objects.begin_upload('%s', 'orders', '%s', 'orders/1001', 5, NULL)", id, key))
		if err := store.Put(t.Context(), id, strings.NewReader(data), int64(len(data))); err != nil {
			t.Fatal(err)
		}
		runSQL(t, pg.GatewayURL, fmt.Sprintf("SELECT objects.commit_upload('%s', 'orders', '%s', ARRAY['%s'::uuid], '{%d}', '%s', '{}', 'orders/1001', 5, NULL, NULL, NULL, false)",
			blob.NewID(), key, id, len(data), hex.EncodeToString(sum[:])))
		return id
	}
	write("1001/x", "old")
	write("1001/x", "new")
	last := write("1001/y", "last")
	for _, step := range sweepsAndVerifications(folder) {
		code, stdout, stderr := cli(t, vars, append([]string{"objects"}, step.args...)...)
		if code != step.code || !strings.Contains(stdout+stderr, step.want) || strings.Contains(stderr, "key:secret") {
			t.Errorf("%v: %d\n%s%s", step.args, code, stdout, stderr)
		}
		if code != exitOK && strings.Contains(stdout+stderr, "verified 0 versions") {
			t.Errorf("%v: a result where nothing was looked at\n%s%s", step.args, stdout, stderr)
		}
	}
	if _, err := os.Stat(folder + "-mistyped"); err == nil {
		t.Error("a folder that was mistyped has been made")
	}
	path := filepath.Join(folder, last.String()[30:], last.String())
	if err := os.WriteFile(path, []byte("list"), 0o600); err != nil {
		t.Fatal(err)
	}
	if code, stdout, stderr := cli(t, vars, "objects", "verify"); code != exitFailed || !strings.Contains(stdout, "CONTENT\torders\t\"1001/y\"") || !strings.Contains(stderr, "1 of 2 versions are not what was written") {
		t.Errorf("a changed blob: %d\n%s%s", code, stdout, stderr)
	}

	empty := t.TempDir()
	if _, err := blob.OpenDir(empty); err != nil {
		t.Fatal(err)
	}
	if code, _, stderr := cli(t, vars, "objects", "verify", "--blobs", empty); code != exitFailed || !strings.Contains(stderr, "2 of 2 versions") ||
		!strings.Contains(stderr, "is its folder mounted") || !strings.Contains(stderr, "hint: check --blobs") {
		t.Errorf("an empty store: %d\n%s", code, stderr)
	}
	anothersStoreIsLeftAlone(t, vars)
}

// anothersStoreIsLeftAlone tries the commands with another database, which has to claim the store first.
func anothersStoreIsLeftAlone(t *testing.T, vars map[string]string) {
	t.Helper()
	other := testenv.Postgres(t)
	vars["FENCEGATE_POSTGRES_URL"] = other.GatewayURL
	for _, args := range [][]string{{"sweep"}, {"claim"}} {
		if code, stdout, stderr := cli(t, vars, append([]string{"objects"}, args...)...); code != exitFailed || !strings.Contains(stderr, "belongs to another database") {
			t.Errorf("another database, %v: %d\n%s%s", args, code, stdout, stderr)
		}
	}
	if _, _, stderr := cli(t, vars, "objects", "claim"); !strings.Contains(stderr, "hint: add --yes once no other database uses these blobs") {
		t.Errorf("claim does not say how: %s", stderr)
	}
	if code, _, stderr := cli(t, vars, "objects", "claim", "--yes"); code != exitOK {
		t.Errorf("claim: %d %s", code, stderr)
	}
}

func TestAFolderThatIsNotMountedIsSaidSoAndLeftAlone(t *testing.T) {
	t.Parallel()
	vars := map[string]string{"FENCEGATE_POSTGRES_URL": testenv.Postgres(t).GatewayURL}
	unmounted := t.TempDir()
	for _, command := range []string{"verify", "sweep", "claim"} {
		code, stdout, stderr := cli(t, vars, "objects", command, "--blobs", unmounted)
		if left, err := os.ReadDir(unmounted); code != exitUsage || stdout != "" || !strings.Contains(stderr, unmounted+" is not a blob store") || err != nil || len(left) > 0 {
			t.Errorf("%s of a folder that is not mounted: %d, %d files there now, %v\n%s%s", command, code, len(left), err, stdout, stderr)
		}
	}
}
