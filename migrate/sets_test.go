package migrate_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"os/exec"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/jackc/pgx/v5"
	_ "github.com/jackc/pgx/v5/stdlib" // pgx for database/sql

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/pgfence"
	"github.com/fencegate/fencegate/fence/sqlfence"
	"github.com/fencegate/fencegate/internal/testenv"
	"github.com/fencegate/fencegate/migrate"
	"github.com/fencegate/fencegate/migrations"
)

// kitOf is this program's sets, with changed files.
func kitOf(t *testing.T, change func(fstest.MapFS)) migrate.Kit {
	t.Helper()
	files := fstest.MapFS{}
	err := fs.WalkDir(migrations.FS, ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		text, err := fs.ReadFile(migrations.FS, name)
		files[name] = &fstest.MapFile{Data: text}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	change(files)
	var k migrate.Kit
	for _, name := range []string{"fence", "objects"} {
		set, err := migrations.Load(files, name)
		if err != nil {
			t.Fatal(err)
		}
		set.Code.Hash = set.Code.Sum()
		k = append(k, set)
	}
	return k
}

// later is a newer program's sets, with this number of additional states; each step adds a table.
func later(t *testing.T, more int) migrate.Kit {
	t.Helper()
	return kitOf(t, func(files fstest.MapFS) {
		for n := range more {
			step(t, files, "fence", stateOf(t, "fence")+n+1, "")
			step(t, files, "objects", stateOf(t, "objects")+n+1, "")
		}
	})
}

// ours is this program's set.
func ours(t testing.TB, name string) migrations.Set {
	t.Helper()
	set, err := migrations.Load(migrations.FS, name)
	if err != nil {
		t.Fatal(err)
	}
	return set
}

// stateOf is the latest state of this program's set.
func stateOf(t testing.TB, name string) int { return ours(t, name).Latest }

// revisionOf is the revision of the code of this program's set.
func revisionOf(t testing.TB, name string) int { return ours(t, name).Code.Revision }

// noteSQL is the statement with which a step notes the state that it leaves.
func noteSQL(t testing.TB, set string, version int) string {
	return fmt.Sprintf("COMMENT ON SCHEMA %[1]s IS 'fencegate %[1]s state %[2]d %[3]s';\n", set, version, ours(t, set).Baseline)
}

// step adds a step to a set's state. The step creates a table, and runs more.
func step(t testing.TB, files fstest.MapFS, set string, version int, more string) {
	name := fmt.Sprintf("%s/state/%06d_more.", set, version)
	add(files, name+"up.sql", fmt.Sprintf("SET ROLE fence_owner;\nCREATE TABLE %s.more_%d ();\n%s\nRESET ROLE;\n", set, version, more)+noteSQL(t, set, version))
	add(files, name+"down.sql", fmt.Sprintf("DROP TABLE %s.more_%d;\n", set, version)+noteSQL(t, set, version-1))
}

func add(files fstest.MapFS, name, text string) { files[name] = &fstest.MapFile{Data: []byte(text)} }

// extend adds a text to a file.
func extend(files fstest.MapFS, name, text string) { add(files, name, string(files[name].Data)+text) }

// edit replaces a text, which must exist, in a file.
func edit(t *testing.T, files fstest.MapFS, name, old, now string) {
	t.Helper()
	text := string(files[name].Data)
	if !strings.Contains(text, old) {
		t.Fatalf("%s has no %q", name, old)
	}
	add(files, name, strings.Replace(text, old, now, 1))
}

// A program that uses only the fence needs no other set.
func TestTheFenceAloneGuards(t *testing.T) {
	t.Parallel()
	pg := setup(t)
	if err := migrate.Up(t.Context(), pg.URL, migrate.Fence); err != nil {
		t.Fatal(err)
	}
	if s, err := migrate.Look(t.Context(), pg.OtherURL, migrate.Fence); err != nil || !s.UpToDate() || len(s.Sets) != 1 {
		t.Errorf("status %v, %v", s, err)
	}
	wantSaid(t, kitOf(t, func(fstest.MapFS) {}), pg, false, fmt.Sprintf("fence state %d, code %d; no objects (this program has state %d, code %d): migrate up",
		stateOf(t, "fence"), revisionOf(t, "fence"), stateOf(t, "objects"), revisionOf(t, "objects")))
	exec1(t, pg, `CREATE TABLE work (by text)`)
	exec1(t, pg, `SELECT fence.protect('work', under => 'work/')`)
	exec1(t, pg, `GRANT INSERT ON work TO PUBLIC`)

	gateway, writer := pg.As(t, "fence_gateway"), pg.As(t, "fence_writer")
	pool := testenv.PoolOf(t, writer)
	db, err := sql.Open("pgx", writer)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	first, second := fence.NewSeal(), fence.NewSeal()
	pgArms := pgfence.New(testenv.PoolOf(t, gateway))
	armer, err := sql.Open("pgx", gateway)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = armer.Close() }()
	insert := func(seal fence.Seal, token fence.Token) (byPG, bySQL error) {
		grant := fence.Grant{Resource: "work/1", Token: token, Seal: seal}
		byPG = pgfence.InTx(t.Context(), pool, grant, func(tx pgx.Tx) error {
			_, err := tx.Exec(t.Context(), `INSERT INTO work VALUES ('pgfence')`)
			return err
		})
		bySQL = sqlfence.InTx(t.Context(), db, grant, func(tx *sql.Tx) error {
			_, err := tx.ExecContext(t.Context(), `INSERT INTO work VALUES ('sqlfence')`)
			return err
		})
		return byPG, bySQL
	}
	if err := pgArms.Arm(t.Context(), fence.Arming{Resource: "work/1", Token: 1, SealHash: first.Hash()}); err != nil {
		t.Fatal(err)
	}
	if byPG, bySQL := insert(first, 1); byPG != nil || bySQL != nil {
		t.Errorf("the holder: %v, %v", byPG, bySQL)
	}
	if err := sqlfence.New(armer).Arm(t.Context(), fence.Arming{Resource: "work/1", Token: 2, SealHash: second.Hash()}); err != nil {
		t.Fatal(err)
	}
	if byPG, bySQL := insert(first, 1); !errors.Is(byPG, fence.ErrStale) || !errors.Is(bySQL, fence.ErrStale) {
		t.Errorf("the holder before: %v, %v", byPG, bySQL)
	}
	if byPG, bySQL := insert(second, 2); byPG != nil || bySQL != nil {
		t.Errorf("the next holder: %v, %v", byPG, bySQL)
	}
}

func TestTheObjectsComeAndGoWithoutTheFence(t *testing.T) {
	t.Parallel()
	whole, pg := testenv.Postgres(t), setup(t)
	var need *migrate.NeedError
	if err := migrate.Up(t.Context(), pg.URL, migrate.Objects); !errors.As(err, &need) || need.Need.Set != "fence" {
		t.Errorf("the objects without a fence: %v", err)
	}
	if err := migrate.Up(t.Context(), pg.URL, migrate.Fence); err != nil {
		t.Fatal(err)
	}
	fenceAlone := catalogueOf(t, pg.URL)
	if strings.Contains(fenceAlone, "objects") || strings.Contains(fenceAlone, "fence.publish") || !strings.Contains(fenceAlone, "fence.guard") {
		t.Error("the fence alone has what belongs to the objects")
	}
	for range 2 {
		if err := migrate.Up(t.Context(), pg.URL, migrate.Objects); err != nil {
			t.Fatal(err)
		}
		if list := differences(catalogueOf(t, whole.URL), catalogueOf(t, pg.URL)); len(list) > 0 {
			t.Errorf("one after the other is not both at once:\n%s", strings.Join(list, "\n"))
		}
		exec1(t, pg, `SELECT objects.create_bucket('b', 0)`)
		exec1(t, pg, `SELECT fence.raise('r', 9, NULL, '')`)
		var needed *migrate.NeededError
		if err := migrate.Down(t.Context(), pg.URL, migrate.Fence, true); !errors.As(err, &needed) || needed.By != "objects" {
			t.Errorf("the fence under the objects: %v", err)
		}
		var inUse *migrate.InUseError
		if err := migrate.Down(t.Context(), pg.URL, migrate.Objects, false); !errors.As(err, &inUse) || inUse.Buckets != 1 {
			t.Errorf("with a bucket: %v", err)
		}
		if err := migrate.Down(t.Context(), pg.URL, migrate.Objects, true); err != nil {
			t.Fatal(err)
		}
		if list := differences(fenceAlone, catalogueOf(t, pg.URL)); len(list) > 0 {
			t.Errorf("the objects left something, or took it along:\n%s", strings.Join(list, "\n"))
		}
		exec1(t, pg, `DELETE FROM fence.resources; DELETE FROM fence.arms`)
	}
	if err := migrate.Down(t.Context(), pg.URL, migrate.Fence, false); err != nil {
		t.Error(err)
	}
	wantStatus(t, pg.URL, false, false)
}

// The objects' code calls functions of the fence's newer code.
func TestTheObjectsNeedAFenceThatIsNewEnough(t *testing.T) {
	t.Parallel()
	pg := setup(t)
	if err := migrate.Up(t.Context(), pg.URL, migrate.Fence); err != nil {
		t.Fatal(err)
	}
	k := newer(t, func(files fstest.MapFS) {
		edit(t, files, "objects/code/manifest.txt", fmt.Sprintf("\nneeds fence state 1 revision %d\n", ours(t, "objects").Needs.Revision),
			fmt.Sprintf("\nneeds fence state 1 revision %d\n", revisionOf(t, "fence")+1))
	})
	var need *migrate.NeedError
	if err := k.Up(t.Context(), pg.URL, migrate.Objects); !errors.As(err, &need) || need.Need.Revision != revisionOf(t, "fence")+1 {
		t.Errorf("on a fence of this program's revision: %v", err)
	}
	if err := k.Up(t.Context(), pg.URL, migrate.All); err != nil {
		t.Error(err)
	}
}

// plain applies the output of migrate.WriteSQL with psql.
func plain(t *testing.T, pg testenv.PG, which migrate.Set, from int) error {
	t.Helper()
	return plainOf(t, kitOf(t, func(fstest.MapFS) {}), pg, which, from)
}

func plainOf(t *testing.T, k migrate.Kit, pg testenv.PG, which migrate.Set, from int) error {
	t.Helper()
	var text strings.Builder
	if err := k.WriteSQL(&text, which, from); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	psql := exec.CommandContext(ctx, "psql", "-X", "-q", "-v", "ON_ERROR_STOP=1", pg.URL)
	psql.Stdin = strings.NewReader(text.String())
	out, err := psql.CombinedOutput()
	if err != nil {
		return errors.New(string(out))
	}
	return nil
}
