package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/fencegate/fencegate/migrate"
)

func newMigrate() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "migrate",
		Short: "Install, upgrade or remove fencegate's schema in a database",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newMigrateUp(), newMigrateDown(), newMigrateStatus(), newMigrateSQL())
	return cmd
}

// migrationFlags is the database of a command, and which sets of migrations it means.
type migrationFlags struct{ url, only string }

func (m *migrationFlags) register(cmd *cobra.Command) {
	cmd.Flags().StringVar(&m.url, "postgres-url", "", "the database, as a login that may create roles and schemas (better in FENCEGATE_POSTGRES_URL: it may hold a password)")
	cmd.Flags().StringVar(&m.only, "only", "", onlyUsage)
}

func (m *migrationFlags) set() (migrate.Set, error) {
	set, err := setOf(m.only)
	if m.url == "" {
		return set, errors.Join(err, usage(errors.New("--postgres-url is missing (or FENCEGATE_POSTGRES_URL)")))
	}
	return set, errors.Join(err, checkPassfile(m.url))
}

func newMigrateUp() *cobra.Command {
	var m migrationFlags
	cmd := &cobra.Command{
		Use:     "up",
		Short:   "Bring the schema to this version; several processes may do so at once",
		Example: `  fencegate migrate up --postgres-url postgres://admin@db/app`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			set, err := m.set()
			if err != nil {
				return err
			}
			return migrate.Up(cmd.Context(), m.url, set, reportWait(cmd))
		},
	}
	m.register(cmd)
	return cmd
}

func newMigrateDown() *cobra.Command {
	var m migrationFlags
	var force bool
	cmd := &cobra.Command{
		Use:   "down",
		Short: "Remove the schema; with fences in it only with --force",
		Long: `Remove the schema. Without --force it refuses a database that holds fences: without them every
stale writer could write again, and tokens would start from the beginning.`,
		Example: `  fencegate migrate down --force --postgres-url postgres://admin@db/app`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			set, err := m.set()
			if err != nil {
				return err
			}
			return migrate.Down(cmd.Context(), m.url, set, force, reportWait(cmd))
		},
	}
	m.register(cmd)
	cmd.Flags().BoolVar(&force, "force", false, "remove the schema although it holds fences")
	markTypedOnly(cmd, "force") // no variable may remove fences
	return cmd
}

func newMigrateStatus() *cobra.Command {
	var m migrationFlags
	cmd := &cobra.Command{
		Use:     "status",
		Short:   "Print the schema's version and this binary's",
		Example: `  fencegate migrate status --postgres-url postgres://admin@db/app`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			set, err := m.set()
			if err != nil {
				return err
			}
			s, err := migrate.Look(cmd.Context(), m.url, set)
			if err != nil {
				return err
			}
			if _, err = fmt.Fprintln(cmd.OutOrStdout(), s); err != nil || len(s.Outside) == 0 {
				return err
			}
			return withHint(fmt.Errorf("not of this version, and in our schemas: %s", strings.Join(s.Outside, ", ")), exitFailed,
				"an old function may accept what its successor refuses; find out whose it is, and DROP FUNCTION (or VIEW) it")
		},
	}
	m.register(cmd)
	return cmd
}

// reportWait prints which session a migration waits for.
func reportWait(cmd *cobra.Command) migrate.Option {
	return migrate.OnWait(func(by migrate.Holder) {
		_, _ = fmt.Fprintln(cmd.ErrOrStderr(), "waiting for the migration lock:", oneLine(by.String()), "holds it")
	})
}

const onlyUsage = "one part alone: fence, or objects (what the S3 port keeps; needs the fence)"

// setOf parses --only.
func setOf(only string) (migrate.Set, error) {
	switch only {
	case "":
		return migrate.All, nil
	case "fence":
		return migrate.Fence, nil
	case "objects":
		return migrate.Objects, nil
	}
	return 0, usage(errors.New("--only is neither fence nor objects"))
}

func newMigrateSQL() *cobra.Command {
	var only string
	var from int
	cmd := &cobra.Command{
		Use:   "sql",
		Short: "Print what up would do as plain SQL, for a database that programs may not change",
		Long: `Print what up would do as plain SQL: one transaction, which a login that may create roles and schemas
applies with psql. It records what it did, so that status, serve and a later up go on from there.`,
		Example: `  fencegate migrate sql | psql -X -v ON_ERROR_STOP=1 postgres://admin@db/app
  fencegate migrate sql --only fence --from 1 >upgrade.sql`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			set, err := setOf(only)
			switch {
			case err != nil:
				return err
			case from < 0 || from > 0 && only == "":
				return usage(errors.New("--from is the state of one set; name the set with --only"))
			}
			return migrate.WriteSQL(cmd.OutOrStdout(), set, from)
		},
	}
	cmd.Flags().StringVar(&only, "only", "", onlyUsage)
	cmd.Flags().IntVar(&from, "from", 0, "the database's state, as migrate status prints it")
	return cmd
}
