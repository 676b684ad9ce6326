package migrate_test

import (
	"context"
	"errors"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"go.uber.org/goleak"

	"github.com/fencegate/fencegate/internal/testenv"
	"github.com/fencegate/fencegate/migrate"
)

// migrateURL, in the environment, makes the test binary migrate and exit, for tests that need a second process.
const migrateURL = "MIGRATE_TEST_URL"

func TestMain(m *testing.M) {
	if address := os.Getenv(migrateURL); address != "" {
		if err := migrate.Up(context.Background(), address, migrate.All); err != nil {
			_, _ = os.Stderr.WriteString(err.Error())
			os.Exit(1)
		}
		os.Exit(0)
	}
	// If setting the dirty mark is refused or cancelled, golang-migrate leaks the goroutine that reads the migration.
	left := goleak.IgnoreAnyFunction("github.com/golang-migrate/migrate/v4.(*Migration).Buffer")
	testenv.VerifyMain(m, append(testenv.LeakOptions(), left)...)
}

// setup creates an empty database. The migrated template exists beside it, so the cluster's roles are in use and no
// test drops them for another.
func setup(t *testing.T) testenv.PG {
	t.Helper()
	_ = testenv.Postgres(t)
	return testenv.PostgresEmpty(t)
}

func up(t *testing.T, address string) {
	t.Helper()
	if err := migrate.Up(t.Context(), address, migrate.All); err != nil {
		t.Fatal(err)
	}
}

func exec1(t *testing.T, pg testenv.PG, sql string) {
	t.Helper()
	if _, err := pg.Pool(t).Exec(t.Context(), sql); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

func wantStatus(t *testing.T, address string, migrated, dirty bool) {
	t.Helper()
	s, err := migrate.Look(t.Context(), address, migrate.All)
	if err != nil || len(s.Sets) != 2 || len(s.Outside) > 0 {
		t.Fatalf("status %+v, %v", s, err)
	}
	if s.Sets[0].Dirty != dirty || s.UpToDate() != (migrated && !dirty) {
		t.Errorf("status %+v", s)
	}
}

func TestUpAndDownAreComplete(t *testing.T) {
	t.Parallel()
	pg := setup(t)
	const schemas = `SELECT coalesce(string_agg(nspname, ' '), '') FROM pg_namespace WHERE nspname NOT LIKE 'pg\_%' AND nspname NOT IN ('public', 'information_schema')`
	for range 2 {
		wantStatus(t, pg.URL, false, false)
		up(t, pg.URL)
		up(t, pg.URL) // a second run does nothing
		wantStatus(t, pg.URL, true, false)
		wantStatus(t, pg.OtherURL, true, false)
		exec1(t, pg, `SELECT fence.raise('r', 1, NULL, '')`)
		exec1(t, pg, `TRUNCATE fence.resources`)
		if err := migrate.Down(t.Context(), pg.URL, migrate.All, false); err != nil {
			t.Fatal(err)
		}
		var left string
		if err := pg.Pool(t).QueryRow(t.Context(), schemas).Scan(&left); err != nil || left != "" {
			t.Errorf("left behind: %q, %v", left, err)
		}
		if err := migrate.Down(t.Context(), pg.URL, migrate.All, false); err != nil {
			t.Errorf("nothing to remove: %v", err)
		}
	}
	var roles int
	if err := pg.Pool(t).QueryRow(t.Context(), `SELECT count(*) FROM pg_roles WHERE rolname IN ('fence_owner', 'fence_writer', 'fence_gateway', 'fence_protector')`).Scan(&roles); err != nil || roles != 4 {
		t.Errorf("%d roles are left to the other databases, %v", roles, err)
	}
}

func TestDownKeepsFencesUnlessForced(t *testing.T) {
	t.Parallel()
	pg := setup(t)
	up(t, pg.URL)
	exec1(t, pg, `CREATE TABLE work ()`)
	exec1(t, pg, `SELECT fence.protect('work', resource => 'r')`)
	refused := func(fences int64, protected int) {
		t.Helper()
		err := migrate.Down(t.Context(), pg.URL, migrate.All, false)
		var inUse *migrate.InUseError
		if !errors.As(err, &inUse) || inUse.Fences != fences || len(inUse.Protected) != protected {
			t.Errorf("got %v", err)
		}
		wantStatus(t, pg.URL, true, false)
	}
	refused(0, 1)
	exec1(t, pg, `SELECT fence.raise('r', 1, NULL, '')`)
	refused(1, 1)
	exec1(t, pg, `SELECT fence.unprotect('work')`)
	refused(1, 0)
	exec1(t, pg, `SELECT fence.protect('work', resource => 'r')`)
	if err := migrate.Down(t.Context(), pg.URL, migrate.All, true); err != nil {
		t.Fatal(err)
	}
	exec1(t, pg, `INSERT INTO work DEFAULT VALUES`) // the table exists, without its guard
}

func TestManyMigrateAtOnce(t *testing.T) {
	t.Parallel()
	pg := setup(t)
	other := testenv.PostgresEmpty(t) // its migration creates the same roles
	var wg sync.WaitGroup
	for i := range 6 {
		wg.Go(func() {
			if err := migrate.Up(t.Context(), []string{pg.URL, other.URL}[i%2], migrate.All); err != nil {
				t.Error(err)
			}
		})
	}
	for range 2 {
		wg.Go(func() {
			cmd := exec.CommandContext(t.Context(), os.Args[0])
			cmd.Env = append(os.Environ(), migrateURL+"="+pg.URL)
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("second process: %v: %s", err, out)
			}
		})
	}
	wg.Wait()
	wantStatus(t, pg.URL, true, false)
	wantStatus(t, other.URL, true, false)
}

func TestTheVersionDoesNotDependOnTheSearchPath(t *testing.T) {
	t.Parallel()
	pg := setup(t)
	exec1(t, pg, `CREATE SCHEMA elsewhere`)
	u, err := url.Parse(pg.URL)
	if err != nil {
		t.Fatal(err)
	}
	q := u.Query()
	q.Set("search_path", "elsewhere")
	u.RawQuery = q.Encode()
	up(t, u.String())
	up(t, pg.URL)
	wantStatus(t, pg.URL, true, false)
	wantStatus(t, u.String(), true, false)
}

// A migration that PostgreSQL refuses leaves nothing behind, and can be repeated.
func TestARefusedMigrationCanBeRepeated(t *testing.T) {
	t.Parallel()
	pg := setup(t)
	exec1(t, pg, `CREATE FUNCTION public.refuse() RETURNS event_trigger LANGUAGE plpgsql AS $$BEGIN
  IF EXISTS (SELECT FROM pg_event_trigger_ddl_commands() c WHERE c.object_identity = 'objects') THEN RAISE 'no such schema here'; END IF; END$$`)
	exec1(t, pg, `CREATE EVENT TRIGGER refuse ON ddl_command_end EXECUTE FUNCTION public.refuse()`) // it blocks a later migration
	err := migrate.Up(t.Context(), pg.URL, migrate.All)
	if err == nil || !strings.Contains(err.Error(), `no such schema here`) || strings.Contains(err.Error(), "CREATE") {
		t.Fatalf("got %v, want PostgreSQL's reason without the whole file", err)
	}
	wantStatus(t, pg.URL, false, false)
	exec1(t, pg, `DROP EVENT TRIGGER refuse`)
	up(t, pg.URL)
	wantStatus(t, pg.URL, true, false)

	exec1(t, pg, `CREATE FUNCTION public.f() RETURNS regtype LANGUAGE sql RETURN 'fence.verdict'::regtype`)
	exec1(t, pg, `CREATE TABLE public.dependent (v fence.verdict)`) // it blocks a removal
	if err := migrate.Down(t.Context(), pg.URL, migrate.All, false); err == nil {
		t.Fatal("removed")
	}
	exec1(t, pg, `DROP TABLE public.dependent; DROP FUNCTION public.f()`)
	up(t, pg.URL)
	if err := migrate.Down(t.Context(), pg.URL, migrate.All, false); err != nil {
		t.Error(err)
	}
}

func TestErrorsNameTheCause(t *testing.T) {
	t.Parallel()
	pg := setup(t)
	if err := migrate.Up(t.Context(), pg.OtherURL, migrate.All); err == nil || !strings.Contains(err.Error(), "permission denied") {
		t.Errorf("a login without rights: %v", err)
	}
	for _, address := range []string{"postgres://nobody@127.0.0.1:1/none?connect_timeout=2", "postgres://%zz"} {
		if err := migrate.Up(t.Context(), address, migrate.All); err == nil {
			t.Errorf("%s: done", address)
		}
		if _, err := migrate.Look(t.Context(), address, migrate.All); err == nil {
			t.Errorf("%s: status", address)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := migrate.Up(ctx, pg.URL, migrate.All); !errors.Is(err, context.Canceled) {
		t.Errorf("a cancelled context: %v", err)
	}
}

// On a managed service no login is a superuser, so a login that may create roles must suffice.
func TestALoginThatIsNoSuperuserCanMigrate(t *testing.T) {
	t.Parallel()
	pg := setup(t)
	address := pg.As(t)
	config, err := pgx.ParseConfig(address)
	if err != nil {
		t.Fatal(err)
	}
	login := pgx.Identifier{config.User}.Sanitize()
	exec1(t, pg, `ALTER ROLE `+login+` CREATEROLE`)
	exec1(t, pg, `GRANT fence_owner TO `+login) // another role has already made the roles
	exec1(t, pg, `ALTER DATABASE `+pg.Database+` OWNER TO `+login)
	up(t, address)
	wantStatus(t, address, true, false)
	if err := migrate.Down(t.Context(), address, migrate.All, false); err != nil {
		t.Error(err)
	}
	exec1(t, pg, `ALTER DATABASE `+pg.Database+` OWNER TO CURRENT_USER`)
}

func TestADatabaseFromANewerProgramIsLeftAlone(t *testing.T) {
	t.Parallel()
	pg := setup(t)
	if err := later(t, 1).Up(t.Context(), pg.URL, migrate.All); err != nil {
		t.Fatal(err)
	}
	for _, lost := range []string{`SELECT`, `DELETE FROM fencegate.fence_state`, `UPDATE fencegate.fence_state SET version = 1, dirty = true`} {
		exec1(t, pg, lost)
		for _, err := range []error{migrate.Up(t.Context(), pg.URL, migrate.All), migrate.Down(t.Context(), pg.URL, migrate.All, false)} {
			var e *migrate.NewerError
			if !errors.As(err, &e) || !strings.Contains(err.Error(), "use a newer program") {
				t.Errorf("%s: %v", lost, err)
			}
		}
	}
}
