package main

import (
	"context"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
)

// execute runs one command line and returns its exit code. SIGINT, SIGTERM, SIGHUP and SIGQUIT end the command's
// context; commands stop in order and clean up. A command that reloads handles SIGHUP itself, and some commands handle
// all of these signals.
func execute(ctx context.Context, e env) int {
	root, ends, stderr := newRoot(e), endings, e.stderr
	if cmd, _, err := root.Find(e.args); err == nil {
		if _, ok := cmd.Annotations[reloads]; ok {
			ends = withoutHangup(endings)
			signal.Ignore(syscall.SIGHUP) // until the command listens for it
		}
		if _, ok := cmd.Annotations[handlesSignals]; ok {
			ends = nil
		}
		if _, ok := cmd.Annotations[queuesMessages]; ok {
			queue := newMessageQueue(e.stderr)
			defer queue.close()
			stderr = queue
		}
	}
	if len(ends) > 0 {
		var stop context.CancelFunc
		ctx, stop = signal.NotifyContext(ctx, ends...)
		defer stop()
	}
	root.SetArgs(e.args)
	root.SetIn(e.stdin)
	root.SetOut(e.stdout)
	root.SetErr(stderr)
	ran, err := root.ExecuteContextC(ctx)
	return report(stderr, ran.CommandPath(), withVariables(ran, endedBy(ctx, err)))
}

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
