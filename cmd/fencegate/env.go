package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// env is everything that a command takes from its process, so that tests can
// run commands inside theirs.
type env struct {
	args           []string
	stdin          io.Reader
	stdout, stderr io.Writer
	lookup         func(name string) (string, bool)
}

// execute runs one command line and returns its exit code. SIGINT and SIGTERM
// end the command's context; commands stop in order and clean up.
func execute(ctx context.Context, e env) int {
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	root := newRoot(e)
	root.SetArgs(e.args)
	root.SetIn(e.stdin)
	root.SetOut(e.stdout)
	root.SetErr(e.stderr)
	return report(e.stderr, root.ExecuteContext(ctx))
}

// report prints one line that says what happened, and one with a hint where
// there is one.
func report(w io.Writer, err error) int {
	if err == nil {
		return exitOK
	}
	var passed *childExit
	if errors.As(err, &passed) {
		return passed.code
	}
	code, hint := classify(err)
	_, _ = fmt.Fprintf(w, "fencegate: %s\n", oneLine(err.Error()))
	if hint != "" {
		_, _ = fmt.Fprintf(w, "hint: %s\n", oneLine(hint))
	}
	return code
}

func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }

const envPrefix = "FENCEGATE_"

func envName(flag string) string {
	return envPrefix + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// fromEnvironment gives each flag that the command line leaves out the value of
// its variable: --postgres-url is FENCEGATE_POSTGRES_URL.
func (e env) fromEnvironment(cmd *cobra.Command) error {
	var failed error
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if f.Changed || f.Name == "help" || failed != nil {
			return
		}
		value, ok := e.lookup(envName(f.Name))
		if !ok || value == "" {
			return
		}
		if err := cmd.Flags().Set(f.Name, value); err != nil {
			failed = usage(fmt.Errorf("variable %s: %w", envName(f.Name), err))
		}
	})
	return failed
}
