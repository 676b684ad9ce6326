package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/fencegate/fencegate/gateway/blob"
	"github.com/fencegate/fencegate/gateway/objects"
	"github.com/fencegate/fencegate/gateway/objects/maintenance"
)

// storeFlags connects a command to PostgreSQL and the blob store.
type storeFlags struct {
	databaseFlags

	blobs string
}

func (s *storeFlags) register(cmd *cobra.Command) {
	s.databaseFlags.register(cmd, asGateway)
	cmd.Flags().StringVar(&s.blobs, "blobs", "", "where the blobs are: what the gateways have as --blobs (required)")
}

// with calls f with a Keeper for both.
func (s *storeFlags) with(ctx context.Context, f func(*maintenance.Keeper) error) error {
	if s.blobs == "" {
		return usage(errors.New("--blobs is missing (or FENCEGATE_BLOBS)"))
	}
	store, err := blob.OpenExisting(ctx, s.blobs)
	if err != nil {
		return usage(fmt.Errorf("--blobs: %w", err))
	}
	return s.databaseFlags.with(ctx, func(pool *pgxpool.Pool) error {
		err := f(maintenance.New(objects.NewDatabase(pool, 0), store))
		_, explained := errors.AsType[*exitError](err)
		if _, foreign := errors.AsType[*maintenance.StoreOwnerError](err); foreign && !explained {
			return withHint(err, exitFailed, "check --blobs and --postgres-url first; fencegate objects claim --help")
		}
		return err
	})
}

func newObjectsClaim() *cobra.Command {
	var s storeFlags
	var yes bool
	cmd := &cobra.Command{
		Use:   "claim",
		Short: "Mark the blob store as this database's, after a restore or pg_upgrade",
		Long: `Mark the blob store as this database's. A gateway marks an empty store by itself. It refuses one
that is marked as another database's: each of the two would delete the other's blobs as left over.
After a restore into another server, or pg_upgrade, the marked database is gone, and this command
marks the store as the new one's. Never use one store with two databases, not even with a copy for
tests.`,
		Example: `  fencegate objects claim --blobs /var/lib/fencegate --yes`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return s.with(cmd.Context(), func(k *maintenance.Keeper) error {
				err := k.Claim(cmd.Context(), yes)
				if _, foreign := errors.AsType[*maintenance.StoreOwnerError](err); foreign {
					return withHint(err, exitFailed, "add --yes once no other database uses these blobs")
				}
				if err == nil {
					_, err = fmt.Fprintln(cmd.OutOrStdout(), "the blob store is this database's")
				}
				return err
			})
		},
	}
	s.register(cmd)
	cmd.Flags().BoolVar(&yes, "yes", false, "take it also from another database")
	markTypedOnly(cmd, "yes")
	return cmd
}

func newObjectsSweep() *cobra.Command {
	var s storeFlags
	var o maintenance.Sweep
	cmd := &cobra.Command{
		Use:   "sweep",
		Short: "Delete the bytes that nothing needs any more, now; gateways do it every hour",
		Long: `Delete the bytes that nothing needs any more: of abandoned uploads, and of versions that are
neither current nor kept, each after a grace. It may run beside gateways, and be interrupted at any
moment; the next one continues. No age endangers an object: an upload that is swept while it is
under way is refused at its end. The database records the longest --sweep-grace of the gateways and
--superseded-age of this command: no sweep deletes the bytes of versions before it.`,
		Example: `  fencegate objects sweep --dry-run
  fencegate objects sweep --unknown --rate 100`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.RecordAge < leastRecordAge {
				return usage(fmt.Errorf("--record-age must be %v or more: a request may be repeated for so long", leastRecordAge))
			}
			if o.Rate < 0 || min(o.PendingAge, o.UnknownAge) <= 0 || o.SupersededAge < 0 {
				return usage(errors.New("--rate must not be negative, and ages must be more than 0"))
			}
			if o.Shorten && o.SupersededAge == 0 {
				return usage(errors.New("--shorten-grace needs --superseded-age"))
			}
			return s.with(cmd.Context(), func(k *maintenance.Keeper) error {
				if err := settleGrace(cmd, k, &o); err != nil {
					return err
				}
				swept, err := k.Sweep(cmd.Context(), o)
				if err != nil && swept == (maintenance.Swept{}) { // nothing was done that could be reported
					return err
				}
				if printed := printSwept(cmd.OutOrStdout(), swept, o.DryRun, s.json); err == nil {
					err = printed
				}
				if err == nil && swept.Listed > 0 {
					err = withHint(fmt.Errorf("%d blobs that versions list have no row; they were left alone", swept.Listed), exitFailed, "fencegate objects verify; then ask for help")
				}
				return err
			})
		},
	}
	s.register(cmd)
	f := cmd.Flags()
	f.BoolVar(&o.DryRun, "dry-run", false, "delete nothing: say what a run would do")
	f.IntVar(&o.Rate, "rate", 0, "delete at most this many blobs per second (default: as many as the store can)")
	f.BoolVar(&o.Store, "unknown", false, "also search the whole store for blobs that the database does not know: their grace begins now")
	f.DurationVar(&o.PendingAge, "pending-age", 24*time.Hour, "of uploads that were begun and never completed")
	f.DurationVar(&o.SupersededAge, "superseded-age", 0, "of versions that are no longer current: readers, replicas and restored backups may need them (default: the recorded grace)")
	f.BoolVar(&o.Shorten, "shorten-grace", false, "let --superseded-age count, and record it, although a longer grace is recorded")
	f.DurationVar(&o.RecordAge, "record-age", maintenance.DefaultRecordAge, "of records of writes whose bytes are gone")
	f.DurationVar(&o.UnknownAge, "unknown-age", 24*time.Hour, "of blobs that the database does not know")
	markTypedOnly(cmd, "shorten-grace")
	return cmd
}

// settleGrace takes the recorded grace where none is given, and says where it is longer than the given one.
func settleGrace(cmd *cobra.Command, k *maintenance.Keeper, o *maintenance.Sweep) error {
	if err := k.Belongs(cmd.Context()); err != nil {
		return fmt.Errorf("sweep: %w", err)
	}
	recorded, err := k.Grace(cmd.Context())
	switch {
	case err != nil:
		return err
	case o.SupersededAge == 0 && recorded == 0:
		return withHint(errors.New("no gateway or sweep has recorded a grace of superseded versions"), exitFailed, "give --superseded-age: the longest --sweep-grace of the gateways")
	case o.SupersededAge == 0:
		o.SupersededAge = recorded
	case o.SupersededAge < recorded && !o.Shorten:
		_, _ = fmt.Fprintf(cmd.ErrOrStderr(), "superseded versions stay for %v, the grace that is recorded; --shorten-grace changes it\n", recorded)
	}
	return nil
}

// leastRecordAge is the sum of the default lifetime of credentials, the longest upload, and the allowed skew of a
// signature's time. A gateway uses its own values.
const leastRecordAge = 24*time.Hour + 12*time.Hour + 15*time.Minute

func printSwept(w io.Writer, swept maintenance.Swept, dry, asJSON bool) error {
	if asJSON {
		all := map[string]any{
			"dry_run": dry, "adopted": swept.Adopted, "named": swept.Listed, "pruned": swept.Pruned, "forgotten": swept.Forgotten,
			"condemned": swept.Condemned,
		}
		if !dry {
			all["deleted"] = swept.Deleted
		}
		return printJSON(w, all)
	}
	did, end := "", fmt.Sprintf("deleted the bytes of %d", swept.Deleted)
	if dry {
		did, end = "would have ", "deleted their bytes, and those of blobs that were condemned before"
	}
	_, err := fmt.Fprintf(w, "%sadopted %d unknown blobs, let %d old versions go, forgot %d records of writes, condemned %d blobs, %s\n",
		did, swept.Adopted, swept.Pruned, swept.Forgotten, swept.Condemned, end)
	if most := max(swept.Forgotten, swept.Condemned); dry && err == nil && most >= maintenance.DryLimit {
		_, err = fmt.Fprintf(w, "it counted no further than %d records and blobs: there may be more\n", maintenance.DryLimit)
	}
	return err
}

func newObjectsVerify() *cobra.Command {
	var s storeFlags
	var o maintenance.Verify
	var rate int64
	cmd := &cobra.Command{
		Use:   "verify [BUCKET [PREFIX]]",
		Short: "Read the bytes again and compare them with what was recorded; the exit code is 1 if something is wrong",
		Long: `Read the bytes of objects again and compare size, MD5 and checksum with what was recorded when
they were written. Findings go to standard output, one to a line: missing, size, content or unreadable.
Progress goes to standard error; --after continues after the key that it names.`,
		Example: `  fencegate objects verify
  fencegate objects verify orders 1001/ --kept --rate 50 --json
  fencegate objects verify orders --sample 0.01`,
		Args: cobra.MaximumNArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				o.Bucket, o.Prefix = args[0], argument(args, 1)
			}
			switch {
			case o.Sample <= 0 || o.Sample > 1:
				return usage(fmt.Errorf("--sample %v: it must be more than 0 and at most 1", o.Sample))
			case rate < 0:
				return usage(fmt.Errorf("--rate %d: it must not be negative", rate))
			case o.After != "" && o.Bucket == "":
				return usage(errors.New("--after needs a bucket"))
			}
			o.Rate = rate << 20
			return s.with(cmd.Context(), func(k *maintenance.Keeper) error {
				return runVerify(cmd, k, o, s.json)
			})
		},
	}
	s.register(cmd)
	f := cmd.Flags()
	f.StringVar(&o.After, "after", "", "begin after this key: the last one that was reported")
	f.BoolVar(&o.Kept, "kept", false, "also the older versions that are kept")
	f.Float64Var(&o.Sample, "sample", 1, "read only this share, chosen at random: 0.01 is one in a hundred")
	f.Int64Var(&rate, "rate", 0, "read at most this many MiB per second (default: as many as the store can)")
	return cmd
}

const progressEvery = 5 * time.Second

func runVerify(cmd *cobra.Command, k *maintenance.Keeper, o maintenance.Verify, asJSON bool) error {
	reported := time.Now()
	report := func(v maintenance.Verified) {
		reported = time.Now()
		last := ""
		if v.Key != "" {
			last = fmt.Sprintf("; the last was %q in %s", v.Key, v.Bucket)
		}
		_, _ = fmt.Fprintf(cmd.ErrOrStderr(), "verified %d versions, %d MiB, %d wrong%s\n", v.Versions, v.Bytes>>20, v.Bad, last)
	}
	o.Progress = func(v maintenance.Verified) {
		if time.Since(reported) >= progressEvery {
			report(v)
		}
	}
	found := []map[string]string{}
	done, err := k.Verify(cmd.Context(), o, func(f maintenance.Finding) {
		if asJSON {
			found = append(found, map[string]string{
				"bucket": f.Bucket, "key": f.Key, "version": f.Version, "blob": f.Blob, "problem": f.Problem, "detail": f.Detail,
			})
			return
		}
		fmt.Fprintf(cmd.OutOrStdout(), "%s\t%s\t%q\tversion %s\t%s\n", strings.ToUpper(f.Problem), f.Bucket, f.Key, f.Version, oneLine(f.Detail))
	})
	if err != nil && done == (maintenance.Verified{}) { // nothing was examined
		return err
	}
	if asJSON {
		if printed := printJSON(cmd.OutOrStdout(), map[string]any{"versions": done.Versions, "bytes": done.Bytes, "bucket": done.Bucket, "key": done.Key, "findings": found}); err == nil {
			err = printed
		}
	} else {
		report(done)
	}
	switch {
	case err != nil && done.Key != "" && o.Bucket != "":
		return withHint(err, exitOf(err), fmt.Sprintf("go on with --after %q", done.Key))
	case err == nil && done.Bad > 0:
		// A wrong blob store lacks every blob, so that is reported first.
		if foreign, ok := errors.AsType[*maintenance.StoreOwnerError](k.Belongs(cmd.Context())); ok {
			return fmt.Errorf("%d of %d versions are not what was written, and %w", done.Bad, done.Versions, foreign)
		}
		return withHint(fmt.Errorf("%d of %d versions are not what was written", done.Bad, done.Versions), exitFailed,
			"bring the blobs back from a backup by their ids, or an older version with fencegate objects restore")
	}
	return err
}
