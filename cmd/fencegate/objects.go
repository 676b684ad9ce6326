package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/gateway/objects"
)

func newObjects(e env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "objects",
		Short: "Objects: list, restore, stage; who wrote them; sweep and verify their bytes",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newObjectsList(), newObjectsVersions(), newObjectsRestore(e), newObjectsAudit(), newObjectsStage(e), newObjectsStaged(),
		newObjectsSweep(), newObjectsVerify(), newObjectsClaim())
	return cmd
}

// shownObject is an object, a version or a record in JSON. Tokens
// are strings, since they may exceed the exact range of a double.
type shownObject struct {
	Key         string     `json:"key"`
	Version     string     `json:"version,omitempty"`
	State       string     `json:"state,omitempty"`
	Deletion    bool       `json:"deletion,omitempty"`
	Size        int64      `json:"size"`
	ETag        string     `json:"etag,omitempty"`
	WrittenAt   time.Time  `json:"written_at"`
	Resource    string     `json:"resource,omitempty"`
	Token       string     `json:"token,omitempty"`
	Holder      string     `json:"holder,omitempty"`
	Origin      string     `json:"restored_from,omitempty"`
	RemovedAt   *time.Time `json:"removed_at,omitempty"`
	RemovedWith string     `json:"removed_with,omitempty"`
	RemovedBy   string     `json:"removed_by,omitempty"`
}

func shownVersion(v objects.Version) shownObject {
	state := "kept"
	if v.Latest {
		state = "latest"
	}
	return shownObject{
		Key: v.Key, Version: v.ID, State: state, Deletion: v.Deletion, Size: v.Size, ETag: v.ETag, WrittenAt: v.Modified.UTC(),
		Resource: v.Resource, Token: v.Token.String(), Holder: v.Holder,
	}
}

func shownRecord(r objects.Record) shownObject {
	o := shownVersion(r.Version)
	o.Origin = r.Origin
	switch {
	case !r.RemovedAt.IsZero():
		at := r.RemovedAt.UTC()
		o.State, o.RemovedAt, o.RemovedWith, o.RemovedBy = "removed", &at, r.RemovedWith.String(), r.RemovedBy
	case !r.Kept && !r.Latest:
		o.State = "gone"
	}
	return o
}

func (o shownObject) kind() string {
	if o.Deletion {
		return "deletion"
	}
	return fmt.Sprint(o.Size)
}

func wantLimit(limit int) error {
	if limit < 1 || limit > 100_000 {
		return usage(fmt.Errorf("--limit %d: it must be from 1 to 100000", limit))
	}
	return nil
}

func newObjectsList() *cobra.Command {
	var d databaseFlags
	var after string
	var limit int
	cmd := &cobra.Command{
		Use:     "ls BUCKET [PREFIX]",
		Short:   "List objects, in the order of their keys",
		Example: `  fencegate objects ls orders 1001/`,
		Args:    cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := wantLimit(limit); err != nil {
				return err
			}
			return d.with(cmd.Context(), func(pool *pgxpool.Pool) error {
				found, err := objects.NewCatalog(objects.NewDatabase(pool, 0)).Objects(cmd.Context(), args[0], argument(args, 1), after, limit)
				if err != nil {
					return err
				}
				list := make([]shownObject, len(found))
				for i, o := range found {
					list[i] = shownObject{Key: o.Key, Size: o.Size, ETag: o.ETag, WrittenAt: o.Modified.UTC()}
				}
				return printList(cmd.OutOrStdout(), d.json, list, "KEY\tSIZE\tWRITTEN AT", func(o shownObject) string {
					return fmt.Sprintf("%q\t%d\t%s", o.Key, o.Size, o.WrittenAt.Format(time.RFC3339))
				})
			})
		},
	}
	d.register(cmd, asGateway)
	cmd.Flags().StringVar(&after, "after", "", "begin after this key: the last one of the page before")
	cmd.Flags().IntVar(&limit, "limit", 1000, "list at most that many")
	return cmd
}

func newObjectsVersions() *cobra.Command {
	var d databaseFlags
	var afterKey, afterVersion string
	var limit int
	cmd := &cobra.Command{
		Use:     "versions BUCKET [PREFIX]",
		Short:   "List the versions that are there, of each key the newest first, and who wrote them",
		Example: `  fencegate objects versions orders 1001/invoice.txt --json`,
		Args:    cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := wantLimit(limit); err != nil {
				return err
			}
			return d.with(cmd.Context(), func(pool *pgxpool.Pool) error {
				found, err := objects.NewCatalog(objects.NewDatabase(pool, 0)).Versions(cmd.Context(), args[0], argument(args, 1), afterKey, afterVersion, limit)
				if err != nil {
					return err
				}
				list := make([]shownObject, len(found))
				for i, v := range found {
					list[i] = shownVersion(v)
				}
				return printList(cmd.OutOrStdout(), d.json, list, "KEY\tVERSION\tSTATE\tSIZE\tTOKEN\tHOLDER\tWRITTEN AT", func(o shownObject) string {
					return fmt.Sprintf("%q\t%s\t%s\t%s\t%s\t%s\t%s", o.Key, o.Version, o.State, o.kind(), o.Token, oneLine(o.Holder), o.WrittenAt.Format(time.RFC3339))
				})
			})
		},
	}
	d.register(cmd, asGateway)
	cmd.Flags().StringVar(&afterKey, "after", "", "begin after this key: the last one of the page before")
	cmd.Flags().StringVar(&afterVersion, "after-version", "", "and after this version of it")
	cmd.Flags().IntVar(&limit, "limit", 1000, "list at most that many")
	return cmd
}

func newObjectsAudit() *cobra.Command {
	var d databaseFlags
	var limit int
	cmd := &cobra.Command{
		Use:     "audit BUCKET KEY",
		Short:   "Tell which token and holder wrote each version of a key, also of those that are gone",
		Example: `  fencegate objects audit orders 1001/invoice.txt`,
		Args:    cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := wantLimit(limit); err != nil {
				return err
			}
			return d.with(cmd.Context(), func(pool *pgxpool.Pool) error {
				found, err := objects.NewCatalog(objects.NewDatabase(pool, 0)).Audit(cmd.Context(), args[0], args[1], limit)
				if err != nil {
					return err
				}
				list := make([]shownObject, len(found))
				for i, r := range found {
					list[i] = shownRecord(r)
				}
				if len(found) == 0 {
					fmt.Fprintf(cmd.ErrOrStderr(), "no write of %q in bucket %q is on record\n", args[1], args[0])
				}
				return printList(cmd.OutOrStdout(), d.json, list, "WRITTEN AT\tVERSION\tSTATE\tSIZE\tRESOURCE\tTOKEN\tHOLDER", func(o shownObject) string {
					return fmt.Sprintf("%s\t%s\t%s\t%s\t%s\t%s\t%s", o.WrittenAt.Format(time.RFC3339), o.Version, o.State, o.kind(), o.Resource, o.Token, oneLine(o.Holder))
				})
			})
		},
	}
	d.register(cmd, asGateway)
	cmd.Flags().IntVar(&limit, "limit", 1000, "list at most that many, the newest")
	return cmd
}

func newObjectsRestore(e env) *cobra.Command {
	var d databaseFlags
	cmd := &cobra.Command{
		Use:   "restore BUCKET KEY VERSION",
		Short: "Make an older version of a key current again, under the grant in FENCE_RESOURCE and FENCE_TOKEN",
		Long: `Make an older version of a key current again: a new version with the same bytes, written under
the grant in FENCE_RESOURCE and FENCE_TOKEN, as "fencegate run" provides it. The grant must be of
the resource that a write of the key needs. A stale one changes nothing.`,
		Example: `  fencegate run --resource orders/1001 -- fencegate objects restore orders 1001/invoice.txt 01965…`,
		Args:    cobra.ExactArgs(3),
		RunE: func(cmd *cobra.Command, args []string) error {
			resource, _ := e.lookup("FENCE_RESOURCE")
			token, _ := e.lookup("FENCE_TOKEN")
			if resource == "" || token == "" {
				return usage(errors.New("FENCE_RESOURCE and FENCE_TOKEN are missing: run it under fencegate run, with one --resource"))
			}
			grant, err := fence.ParseGrant(resource, token)
			if err != nil {
				return err
			}
			return d.with(cmd.Context(), func(pool *pgxpool.Pool) error {
				id, err := objects.NewCatalog(objects.NewDatabase(pool, 0)).Restore(cmd.Context(), args[0], args[1], args[2], grant)
				if err != nil {
					return err
				}
				if d.json {
					return printJSON(cmd.OutOrStdout(), map[string]string{"key": args[1], "version": id, "restored_from": args[2]})
				}
				_, err = fmt.Fprintf(cmd.OutOrStdout(), "%q is version %s again, as version %s\n", args[1], args[2], id)
				return err
			})
		},
	}
	d.register(cmd, asGateway)
	return cmd
}

func newObjectsStaged() *cobra.Command {
	var d databaseFlags
	var after string
	var limit int
	cmd := &cobra.Command{
		Use:     "staged BUCKET [PREFIX]",
		Short:   "List uploads that wait to be published together with rows, in the order of their staging",
		Example: `  fencegate objects staged reports`,
		Args:    cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := wantLimit(limit); err != nil {
				return err
			}
			return d.with(cmd.Context(), func(pool *pgxpool.Pool) error {
				found, err := objects.NewCatalog(objects.NewDatabase(pool, 0)).Staged(cmd.Context(), args[0], argument(args, 1), after, limit)
				if err != nil {
					return err
				}
				list := make([]shownObject, len(found))
				for i, s := range found {
					list[i] = shownVersion(s.Version)
					list[i].State = "staged"
				}
				return printList(cmd.OutOrStdout(), d.json, list, "KEY\tSTAGE\tSIZE\tRESOURCE\tTOKEN\tSTAGED AT", func(o shownObject) string {
					return fmt.Sprintf("%q\t%s\t%d\t%s\t%s\t%s", o.Key, o.Version, o.Size, o.Resource, o.Token, o.WrittenAt.Format(time.RFC3339))
				})
			})
		},
	}
	d.register(cmd, asGateway)
	cmd.Flags().StringVar(&after, "after", "", "begin after this stage: the last one of the page before")
	cmd.Flags().IntVar(&limit, "limit", 1000, "list at most that many")
	return cmd
}
