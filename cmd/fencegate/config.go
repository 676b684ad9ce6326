package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"

	"github.com/fencegate/fencegate/gateway"
	"github.com/fencegate/fencegate/internal/optionfile"
)

func newConfig(e env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "config",
		Short: "Check and print the options of serve",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newConfigCheck(e), newConfigPrint(e))
	return cmd
}

// noFile rejects a file name given without its flag.
func noFile(_ *cobra.Command, args []string) error {
	if len(args) > 0 {
		return fmt.Errorf("unexpected argument %q: name the file with --config", args[0])
	}
	return nil
}

func newConfigCheck(e env) *cobra.Command {
	var o serveFlags
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Say whether serve would start with these options",
		Long: `Say whether serve would start with these options. It takes what serve takes: the same flags, variables
and file. It reads the files that they name, and asks no server; "fencegate doctor" does that.

A variable that begins with FENCEGATE_ and belongs to no option is an error here, unlike in serve.
It prints all unknown keys and variables and all values of a wrong type; if there are none, all that
is wrong with what the options say together and with the files that they name, of each file the first
error. The exit code is then 64.`,
		Example: `  fencegate config check --config /etc/fencegate/fencegate.yaml`,
		Args:    noFile,
		PersistentPreRunE: func(*cobra.Command, []string) error {
			return nil // RunE reports all problems together
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			var wrong []string
			refuse := func(err error) { wrong = append(wrong, err.Error()) }
			err := o.options.resolve(e, cmd)
			if problems, ok := errors.AsType[optionfile.Problems](err); ok {
				for _, p := range problems {
					refuse(p)
				}
			} else if err != nil {
				refuse(err)
			} else {
				for _, fault := range o.faults(e, o.needsToken) {
					refuse(o.options.located(fault))
				}
			}
			wrong = append(wrong, e.unknownVariables(cmd.Root())...)
			for _, warning := range append(o.options.exposed(), o.cfg.CertificateWarnings()...) {
				_, _ = fmt.Fprintln(cmd.ErrOrStderr(), "warning:", oneLine(warning))
			}
			if len(wrong) == 1 {
				return withHint(errors.New(wrong[0]), exitUsage, keysHint)
			}
			for _, text := range wrong {
				_, _ = fmt.Fprintln(cmd.ErrOrStderr(), oneLine(text))
			}
			if len(wrong) > 0 {
				return withHint(fmt.Errorf("%d errors in the configuration", len(wrong)), exitUsage, keysHint)
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), "the configuration is valid:", o.options.counts())
			return err
		},
	}
	o.register(cmd)
	return cmd
}

// needsToken refuses an API without authentication.
func (o *serveFlags) needsToken(cfg gateway.Config) error {
	if cfg.GeneratesToken() && o.principalsFile == "" {
		return usage(errNeedsToken)
	}
	return nil
}

// counts describes how many options come from which origin.
func (o *options) counts() string {
	var of [fromFlag + 1]int
	for _, f := range o.inOrder() {
		of[o.origins[f.Name].from]++
	}
	return fmt.Sprintf("%d options from the file, %d from variables, %d from flags", of[fromFile], of[fromVariable], of[fromFlag])
}

func newConfigPrint(e env) *cobra.Command {
	var o serveFlags
	cmd := &cobra.Command{
		Use:   "print",
		Short: "Print the options that serve would start with, and where each is from",
		Long: `Print the options that serve would start with, as a file for --config, and where each is from: the
default, FILE:LINE, a variable or a flag. It takes what serve takes. Options that are empty are left
out. Passwords are shown as ***.`,
		Example:           `  fencegate config print --config /etc/fencegate/fencegate.yaml --log-level debug`,
		Args:              noFile,
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error { return o.options.resolve(e, cmd) },
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.options.print(cmd.OutOrStdout()); err != nil {
				return err
			}
			if password, _ := e.lookup(redisPasswordVariable); password != "" {
				_, err := fmt.Fprintf(cmd.OutOrStdout(), "# %s: %s\n", redisPasswordVariable, mask)
				return err
			}
			return nil
		},
	}
	o.register(cmd)
	return cmd
}

// print writes the options as a file; a comment names each one's origin.
func (o *options) print(w io.Writer) error {
	top := &yaml.Node{Kind: yaml.MappingNode}
	for _, f := range o.inOrder() {
		texts := valuesOf(f)
		if len(texts) == 0 || len(texts) == 1 && texts[0] == "" {
			continue
		}
		at, path := top, strings.Split(keyOf(f), ".")
		for _, section := range path[:len(path)-1] {
			at = sectionOf(at, section)
		}
		name := &yaml.Node{Kind: yaml.ScalarNode, Value: path[len(path)-1]}
		value := valueNode(kindOf(f), maskedAll(texts))
		if value.Kind == yaml.SequenceNode {
			name.LineComment = oneLine(o.origins[f.Name].String())
		} else {
			value.LineComment = oneLine(o.origins[f.Name].String())
		}
		at.Content = append(at.Content, name, value)
	}
	out := yaml.NewEncoder(w)
	out.SetIndent(2)
	if err := out.Encode(top); err != nil {
		return err
	}
	return out.Close()
}

// inOrder returns the flags that the file may set, ordered by key; those without a section come first.
func (o *options) inOrder() []*pflag.Flag {
	var all []*pflag.Flag
	o.flags.VisitAll(func(f *pflag.Flag) {
		if keyOf(f) != "" {
			all = append(all, f)
		}
	})
	slices.SortFunc(all, func(a, b *pflag.Flag) int {
		x, y := keyOf(a), keyOf(b)
		return cmp.Or(cmp.Compare(min(strings.Count(x, "."), 1), min(strings.Count(y, "."), 1)), strings.Compare(x, y))
	})
	return all
}

func sectionOf(within *yaml.Node, name string) *yaml.Node {
	for i := 0; i < len(within.Content); i += 2 {
		if within.Content[i].Value == name {
			return within.Content[i+1]
		}
	}
	section := &yaml.Node{Kind: yaml.MappingNode}
	within.Content = append(within.Content, &yaml.Node{Kind: yaml.ScalarNode, Value: name}, section)
	return section
}

func valueNode(kind optionfile.Kind, texts []string) *yaml.Node {
	one := func(text string) *yaml.Node {
		n := &yaml.Node{}
		n.SetString(text)
		if kind != optionfile.Text && kind != optionfile.List {
			n.Tag = "" // numbers, durations and booleans are written without quotes
		}
		return n
	}
	if kind != optionfile.List {
		return one(texts[0])
	}
	list := &yaml.Node{Kind: yaml.SequenceNode}
	for _, text := range texts {
		list.Content = append(list.Content, one(text))
	}
	return list
}
