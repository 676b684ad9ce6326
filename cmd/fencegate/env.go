package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/fencegate/fencegate/internal/pgtext"
	"github.com/fencegate/fencegate/internal/terminal"
)

// env is what a command takes from its process, so that tests can run commands in process.
type env struct {
	args           []string
	stdin          io.Reader
	stdout, stderr io.Writer
	lookup         func(name string) (string, bool)
	environ        func() []string // NAME=VALUE each
}

// endings are the signals that end a command, without those that this process was started to ignore, as by nohup. That
// can only be determined before the first [signal.Notify].
var endings = slices.DeleteFunc([]os.Signal{os.Interrupt, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT}, signal.Ignored)

// execute runs one command line and returns its exit code. SIGINT, SIGTERM, SIGHUP and SIGQUIT end the command's
// context; commands stop in order and clean up. A command that reloads handles SIGHUP itself, and one that heeds all of them.
func execute(ctx context.Context, e env) int {
	root, ends, stderr := newRoot(e), endings, e.stderr
	if cmd, _, err := root.Find(e.args); err == nil {
		if _, ok := cmd.Annotations[reloads]; ok {
			ends = withoutHangup(endings)
			signal.Ignore(syscall.SIGHUP) // until the command listens for it
		}
		if _, ok := cmd.Annotations[heeds]; ok {
			ends = nil
		}
		if _, ok := cmd.Annotations[queues]; ok {
			queue := newMessages(e.stderr)
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
	return report(stderr, ran.CommandPath(), named(ran, endedBy(ctx, err)))
}

// interrupted is the error of a command that a signal ended.
type interrupted struct{}

func (interrupted) Error() string { return "interrupted" }
func (interrupted) Unwrap() error { return context.Canceled }

// endedBy replaces an error that follows from the interrupt that ended ctx.
func endedBy(ctx context.Context, err error) error {
	var said *exitError
	var told *toldError
	var passed *childExit
	if err == nil || ctx.Err() == nil || errors.As(err, &said) || errors.As(err, &told) || errors.As(err, &passed) {
		return err
	}
	return interrupted{}
}

// report prints one line with the command's error, and one with a hint if there is one.
func report(w io.Writer, command string, err error) int {
	if err == nil {
		return exitOK
	}
	if passed, ok := errors.AsType[*childExit](err); ok {
		return passed.code
	}
	code, hint := classify(err)
	if code == exitUnread || errors.As(err, new(*toldError)) {
		return code
	}
	text := oneLine(pgtext.Of(err))
	if code == exitInterrupted {
		text = "interrupted"
	}
	if _, malformed := errors.AsType[*pgconn.ParseConfigError](err); malformed {
		text = "the database's address is not a PostgreSQL address" // err contains the address, sometimes with its password
	}
	_, _ = fmt.Fprintf(w, "fencegate: %s\n", text)
	if hint == seeHelp {
		hint = "see " + command + " --help"
	}
	if hint != "" && !strings.Contains(text, oneLine(hint)) {
		_, _ = fmt.Fprintf(w, "hint: %s\n", oneLine(hint))
	}
	return code
}

func oneLine(s string) string { return terminal.Line(s) }

const envPrefix = "FENCEGATE_"

func envName(flag string) string {
	return envPrefix + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// typedOnly annotates flags that no variable may set.
const typedOnly = "typed only"

func markTypedOnly(cmd *cobra.Command, flag string) {
	annotate(cmd.Flags(), flag, typedOnly)
}

// annotate annotates an existing flag.
func annotate(f *pflag.FlagSet, flag, mark string, values ...string) {
	marks := &f.Lookup(flag).Annotations
	if *marks == nil {
		*marks = map[string][]string{}
	}
	(*marks)[mark] = append([]string{}, values...)
}

// neverEmpty annotates flags that grant rights, or name a secret.
// An unset shell variable must not open a gateway to everyone.
const neverEmpty = "never empty"

func isEmpty(v pflag.Value) bool {
	if several, ok := v.(pflag.SliceValue); ok {
		return slices.Contains(several.GetSlice(), "")
	}
	return v.String() == ""
}

// refuseEmpty refuses an empty value of a neverEmpty flag.
func refuseEmpty(f *pflag.Flag, given string) error {
	if f.Annotations[neverEmpty] == nil {
		return nil
	}
	return usage(fmt.Errorf("%s is empty; give it a value, or omit it", given))
}

// fromEnvironment sets each flag that is missing on the command line from its variable: --postgres-url is
// FENCEGATE_POSTGRES_URL.
func (e env) fromEnvironment(cmd *cobra.Command) error {
	var failed error
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if f.Changed && isEmpty(f.Value) && failed == nil {
			failed = refuseEmpty(f, "--"+f.Name)
		}
		if f.Changed || f.Name == "help" || f.Name == "version" || f.Annotations[typedOnly] != nil || failed != nil {
			return
		}
		value, ok := e.lookup(envName(f.Name))
		if ok && value == "" {
			failed = refuseEmpty(f, "variable "+envName(f.Name))
		}
		if !ok || value == "" {
			return
		}
		if err := cmd.Flags().Set(f.Name, value); err != nil {
			failed = usage(fmt.Errorf("variable %s: %w", envName(f.Name), err))
		}
		annotate(cmd.Flags(), f.Name, byVariable)
	})
	return failed
}
