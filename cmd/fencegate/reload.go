package main

import (
	"context"
	"log/slog"
	"os"
	"os/signal"
	"slices"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/fencegate/fencegate/gateway"
	"github.com/fencegate/fencegate/gateway/pgwire"
	"github.com/fencegate/fencegate/internal/option"
)

// reloads annotates commands that read their files again on SIGHUP instead of ending.
const reloads = "reloads"

// withoutHangup returns the signals that end a command that reloads. SIGQUIT ends it with the stacks of all goroutines,
// as it ends any program in Go.
func withoutHangup(endings []os.Signal) []os.Signal {
	return slices.DeleteFunc(slices.Clone(endings), func(s os.Signal) bool { return s == syscall.SIGHUP || s == syscall.SIGQUIT })
}

// reloading reads the option file, the policies and the principals again at each SIGHUP, until stop is called. stop
// waits for a reload that is running.
func (o *serveFlags) reloading(ctx context.Context, e env, g *gateway.Gateway, cfg gateway.Config) (stop func()) {
	hangups, ended := make(chan os.Signal, 1), make(chan struct{})
	signal.Notify(hangups, syscall.SIGHUP)
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx)) // also while the gateway drains
	go func() {
		defer close(ended)
		for {
			select {
			case <-ctx.Done():
				return
			case <-hangups:
				o.reload(e, g, cfg)
			}
		}
	}()
	return func() {
		signal.Ignore(syscall.SIGHUP) // until the process has exited
		cancel()
		<-ended
	}
}

// reload applies the options of the file, and then each file of rules. Each file is applied completely or not at all. A
// refused file does not keep the others from being read: a removed right ends despite a misspelt option.
func (o *serveFlags) reload(e env, g *gateway.Gateway, cfg gateway.Config) {
	if o.options.path == "" && o.policyFile == "" && o.principalsFile == "" {
		cfg.Logger.Info("SIGHUP: nothing to read again without --config, --pg-policy-file or --principals; replaced certificates need no signal")
	}
	if o.options.path != "" {
		o.reloadOptions(e, g, cfg.Logger)
	}
	if o.policyFile != "" {
		o.reloadPolicies(g, cfg.Logger)
	}
	if o.principalsFile != "" {
		o.reloadPrincipals(g, cfg)
	}
	o.warnReplaced(cfg)
}

// reloadOptions reads the option file again. Changes of reloadable options apply at once; other changes are logged by
// name and wait for the next start. A file that serve would not start with changes nothing.
func (o *serveFlags) reloadOptions(e env, g *gateway.Gateway, log *slog.Logger) {
	next, err := o.again(e, g.GeneratedToken() != "")
	var applied, waiting []string
	if err == nil {
		applied, waiting = o.changes(next)
		if slices.ContainsFunc(applied, ofRules) && next.policyFile == "" {
			var rules []pgwire.Rule
			if rules, err = next.rules(); err == nil {
				err = g.Permit(rules) // Permit logs the changes
			}
		}
	}
	if err != nil {
		log.Error("SIGHUP: the configuration is refused; the previous one stays", "file", o.options.path, "error", oneLine(err.Error()))
		return
	}
	for _, name := range applied {
		_ = setFlag(o.options.flags.Lookup(name), valuesOf(next.options.flags.Lookup(name))) // next accepted the same texts
	}
	o.log.apply()
	log.Info("SIGHUP: the configuration was read again", "file", o.options.path, "applied", keysOf(next, applied))
	if len(waiting) > 0 {
		log.Warn("SIGHUP: some changed options need a restart; they keep their values until then", "options", keysOf(next, waiting))
	}
	for _, warning := range next.options.exposed() {
		log.Warn(warning)
	}
}

// again returns what serve would start with now: the same command line and variables, and the current file. generates
// says that a start makes a bearer token where one is missing.
func (o *serveFlags) again(e env, generates bool) (*serveFlags, error) {
	next, cmd := &serveFlags{}, &cobra.Command{}
	next.register(cmd)
	for name, from := range o.options.origins {
		if from.from > fromFile {
			if err := setFlag(next.options.flags.Lookup(name), valuesOf(o.options.flags.Lookup(name))); err != nil {
				return nil, err
			}
			next.options.origins[name] = from
		}
	}
	next.options.path = o.options.path
	if err := next.options.readFile(); err != nil {
		return nil, err
	}
	// The files of rules are read afterwards, each by itself.
	judged := *next
	judged.policyFile, judged.principalsFile = "", ""
	return next, next.options.located(first(judged.faults(e, func(cfg gateway.Config) error {
		if err := next.oneSourceOfRules(); err != nil || generates {
			return err
		}
		return next.needsToken(cfg)
	})))
}

// changes returns the flags that differ in next: those that apply now, and those that wait for the next start.
func (o *serveFlags) changes(next *serveFlags) (applied, waiting []string) {
	principals := o.principalsFile != "" && next.principalsFile != ""
	// A truncated file could have this effect.
	opens := o.limits() && !next.limits() || o.limitsEveryone() && !next.limitsEveryone()
	for _, f := range o.options.inOrder() {
		when := f.Annotations[reloadable]
		switch {
		case slices.Equal(valuesOf(f), valuesOf(next.options.flags.Lookup(f.Name))):
		case slices.Contains(when, option.Applies) && (!opens || !ofRules(f.Name)), slices.Contains(when, option.WithPrincipals) && principals:
			applied = append(applied, f.Name)
		default:
			waiting = append(waiting, f.Name)
		}
	}
	return applied, waiting
}

// limits reports whether sessions on the PostgreSQL port need more than a login.
func (o *serveFlags) limits() bool { return len(o.pgPolicies) > 0 || o.policyFile != "" }

// limitsEveryone reports whether there is a policy for every session, as in each accepted file of rules.
func (o *serveFlags) limitsEveryone() bool {
	if o.policyFile != "" {
		return true
	}
	rules, err := pgwire.ParseRules(splitAll(o.pgPolicies))
	return err == nil && forEveryone(rules)
}

func ofRules(flag string) bool {
	return flag == "pg-policy" || flag == "pg-policy-file"
}

func keysOf(o *serveFlags, flags []string) []string {
	keys := make([]string, len(flags))
	for i, name := range flags {
		keys[i] = keyOf(o.options.flags.Lookup(name))
	}
	return keys
}

func (o *serveFlags) reloadPolicies(g *gateway.Gateway, log *slog.Logger) {
	p, err := readPolicyFile(o.policyFile)
	if err == nil {
		err = g.Permit(p) // Permit logs the changes
	}
	if err != nil {
		log.Error("SIGHUP: the policies are refused; the previous ones stay", "file", o.policyFile, "error", oneLine(err.Error()))
	}
}
