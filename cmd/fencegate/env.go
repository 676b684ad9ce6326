package main

import (
	"fmt"
	"io"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// env is what a command takes from its process, so that tests can run commands in process.
type env struct {
	args           []string
	stdin          io.Reader
	stdout, stderr io.Writer
	lookup         func(name string) (string, bool)
	environ        func() []string // NAME=VALUE each
}

func version() string {
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" && info.Main.Version != "(devel)" {
		return info.Main.Version
	}
	return "development"
}

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
