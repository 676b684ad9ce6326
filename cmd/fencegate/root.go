package main

import (
	"github.com/spf13/cobra"
)

func newRoot(e env) *cobra.Command {
	root := &cobra.Command{
		Use:   "fencegate",
		Short: "Refuse stale writers at the storage itself",
		Long: `fencegate guards PostgreSQL and object storage with fencing tokens: a writer whose
lease is over is refused by the storage, however long it slept.

Every flag can also come from the environment: --postgres-url is FENCEGATE_POSTGRES_URL.
Exit codes are listed in docs/cli.md.`,
		Example: `  fencegate demo                                   watch a paused writer being refused
  fencegate dev                                    everything in one process, no set-up
  fencegate run --resource orders/1001 -- ./job    a job that cannot write once its lease is over`,
		Version:       version(),
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          cobra.NoArgs,
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			return e.prepare(cmd)
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usage(err) })
	root.AddCommand(
		newDemo(e), newDev(e), newServe(e), newConfig(e), newMigrate(), newProtect(), newUnprotect(),
		newRun(e), newLease(e), newResources(e), newRevoke(e), newSessions(e), newActivity(e), newBuckets(e), newObjects(e), newFence(e), newDoctor(e), newHealth(e), newNodes(e), newPrincipals(e), newVersion(e), newDemoWorker(e),
	)
	usageArgs(root)
	return root
}

// usageArgs turns argument errors into usage errors.
func usageArgs(cmd *cobra.Command) {
	check := cmd.Args
	if check != nil {
		cmd.Args = func(cmd *cobra.Command, args []string) error {
			if err := check(cmd, args); err != nil {
				return usage(err)
			}
			return nil
		}
	}
	for _, sub := range cmd.Commands() {
		usageArgs(sub)
	}
}
