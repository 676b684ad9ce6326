package main

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/internal/option"
	"github.com/fencegate/fencegate/internal/optionfile"
)

// sections are the sections of serve's file. A flag that begins with a section and a dash is a key in it: --pg-tls-cert
// is pg.tls.cert. Longer names come first.
var sections = []string{"api.tls", "pg.tls", "s3.tls", "redis.tls", "api", "log", "metrics", "pg", "postgres", "redis", "s3", "sql", "sweep"}

// keysHint is the hint for a misspelled option.
const keysHint = "fencegate config print shows the keys that are set; fencegate serve --help=all has all flags: --pg-tls-cert is pg.tls.cert"

// Annotations of flags of serve.
const (
	fileKey    = "key in the file" // if it differs from the flag's name; "": not in the file
	reloadable = "reloadable"      // the value is the Reload of the flag's row
	common     = "common"          // --help shows it
)

// keyOf returns a flag's key in serve's file, or "".
func keyOf(f *pflag.Flag) string {
	if marked := f.Annotations[fileKey]; marked != nil {
		return strings.TrimPrefix(marked[0], "-")
	}
	if f.Name == "help" || f.Name == "version" {
		return ""
	}
	for _, section := range sections {
		if rest, ok := strings.CutPrefix(f.Name, strings.ReplaceAll(section, ".", "-")+"-"); ok {
			return section + "." + rest
		}
	}
	return f.Name
}

// origin is where a value comes from. Later constants take precedence.
type origin struct {
	from  int
	where string
}

const (
	fromDefault = iota
	fromFile
	fromVariable
	fromFlag
)

func (o origin) String() string { return cmp.Or(o.where, "default") }

// options are the flags of serve with the origin of each value:
// the command line, the environment, the file, or the default.
type options struct {
	table   option.Table
	flags   *pflag.FlagSet
	path    string // of the file; "": none
	file    *optionfile.File
	origins map[string]origin // by flag; absent for defaults
}

// register adds the flags of a table, the one that names the file, and --help.
func (o *options) register(cmd *cobra.Command, table option.Table) {
	o.flags, o.origins = cmd.Flags(), map[string]origin{}
	o.table = append(table.Flags(), option.Row{
		Field: "option file", At: &o.path, Flag: "config", Key: "-", Common: true, Secret: true,
		Help: "YAML file with the options, see docs/configuration.md; variables override it, and flags override variables (default: none)",
	})
	registerTable(o.flags, o.table)
	for _, r := range o.table {
		for mark, value := range map[string]any{fileKey: r.Key, reloadable: r.Reload, neverEmpty: r.Secret, common: r.Common} {
			if value != "" && value != false {
				annotate(o.flags, r.Flag, mark, fmt.Sprint(value))
			}
		}
	}
	registerHelp(cmd)
}

// registerTable adds the flags of a table.
func registerTable(f *pflag.FlagSet, table option.Table) {
	table.SetPresets()
	for _, r := range table {
		switch at := r.At.(type) {
		case *string:
			f.StringVar(at, r.Flag, *at, r.Help)
		case *bool:
			f.BoolVar(at, r.Flag, *at, r.Help)
		case *int:
			f.IntVar(at, r.Flag, *at, r.Help)
		case *time.Duration:
			f.DurationVar(at, r.Flag, *at, r.Help)
		case *[]string:
			if r.Split {
				f.StringSliceVar(at, r.Flag, nil, r.Help)
			} else {
				f.StringArrayVar(at, r.Flag, nil, r.Help)
			}
		}
	}
}

// flagFaults returns what is wrong with the values of a table's flags.
func flagFaults(table option.Table) []error {
	all := table.FlagFaults(envName)
	for i := range all {
		all[i] = usage(all[i])
	}
	return all
}

// inFlags rewrites the refusal of a field in terms of the command line, if a flag sets the field.
func (o *options) inFlags(err error) error {
	invalid, ok := errors.AsType[*fence.InvalidError](err)
	if !ok {
		return err
	}
	flag := o.table.Flag(invalid.Field)
	if flag == "" {
		return usage(err)
	}
	reason := fieldNames.ReplaceAllStringFunc(invalid.Reason, func(field string) string { return cmp.Or(o.table.Flag(field), field) })
	return usage(&fence.InvalidError{Field: flag, Reason: reason})
}

// fieldNames finds the names of fields in a refusal, and quoted values, which name none.
var fieldNames = regexp.MustCompile(`"[^"]*"|\b[A-Z][A-Za-z0-9]*(\.[A-Z][A-Za-z0-9]*)?\b`)

// helpFlag is the value of --help: true, false or all.
type helpFlag struct{ shown, all bool }

func (h *helpFlag) Set(text string) (err error) {
	if h.all = text == "all"; h.all {
		text = "true"
	}
	if h.shown, err = strconv.ParseBool(text); err != nil {
		return errors.New("must be all, or have no value")
	}
	return nil
}

func (h *helpFlag) String() string { return strconv.FormatBool(h.shown) } // as cobra reads it
func (*helpFlag) Type() string     { return "bool" }

// registerHelp adds --help, which shows the common flags, and --help=all.
func registerHelp(cmd *cobra.Command) {
	help := &helpFlag{}
	f := cmd.Flags().VarPF(help, "help", "h", "show the common flags; --help=all: all flags")
	f.NoOptDefVal = "true"
	cmd.SetHelpFunc(func(cmd *cobra.Command, args []string) {
		hidden := 0
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			if f.Hidden = !help.all && f.Name != "help" && f.Annotations[common] == nil; f.Hidden {
				hidden++
			}
		})
		cmd.Parent().HelpFunc()(cmd, args)
		if hidden > 0 {
			_, _ = fmt.Fprintf(cmd.OutOrStdout(), "\n%s --help=all shows %d more flags.\n", cmd.CommandPath(), hidden)
		}
	})
}

// resolve sets each flag that is missing on the command line from the environment, or else from the file.
func (o *options) resolve(e env, cmd *cobra.Command) error {
	o.note(func(name string) origin { return origin{fromFlag, "flag --" + name} })
	if err := e.fromEnvironment(cmd); err != nil {
		return err
	}
	o.note(func(name string) origin { return origin{fromVariable, "variable " + envName(name)} })
	return o.readFile()
}

// note records the origin of the flags that were set since the last call.
func (o *options) note(by func(name string) origin) {
	o.flags.VisitAll(func(f *pflag.Flag) {
		if f.Changed && o.origins[f.Name].from == fromDefault {
			o.origins[f.Name] = by(f.Name)
		}
	})
}

// readFile sets the flags that have no value yet from the file. It reports all errors of the file together.
func (o *options) readFile() error {
	if o.path == "" {
		return nil
	}
	byKey, kinds := map[string]*pflag.Flag{}, map[string]optionfile.Kind{}
	for _, f := range o.inOrder() {
		byKey[keyOf(f)], kinds[keyOf(f)] = f, kindOf(f)
	}
	file, err := optionfile.Read(o.path, kinds)
	if err != nil {
		return withHint(err, exitUsage, keysHint)
	}
	o.file = file
	var problems optionfile.Problems
	for key, value := range file.Values {
		f, at := byKey[key], origin{fromFile, fmt.Sprintf("%s:%d", o.path, value.Line)}
		if f.Annotations[neverEmpty] != nil && (len(value.Texts) == 0 || slices.Contains(value.Texts, "")) {
			problems = append(problems, &optionfile.Problem{Path: o.path, Line: value.Line, Reason: key + " is empty; give it a value, or omit it"})
			continue
		}
		if o.origins[f.Name].from > fromFile {
			continue
		}
		if err := setFlag(f, value.Texts); err != nil {
			problems = append(problems, &optionfile.Problem{Path: o.path, Line: value.Line, Reason: key + ": invalid value"}) // not shown
			continue
		}
		o.origins[f.Name] = at
	}
	if len(problems) > 0 {
		return withHint(problems.Sorted(), exitUsage, keysHint)
	}
	return nil
}

// setFlag sets a flag to texts, without splitting them.
func setFlag(f *pflag.Flag, texts []string) error {
	if several, ok := f.Value.(pflag.SliceValue); ok {
		return several.Replace(texts)
	}
	if len(texts) != 1 {
		return errors.New("it takes one value")
	}
	return f.Value.Set(texts[0])
}

// valuesOf returns the texts with which setFlag gives another flag the same value.
func valuesOf(f *pflag.Flag) []string {
	if several, ok := f.Value.(pflag.SliceValue); ok {
		return several.GetSlice()
	}
	return []string{f.Value.String()}
}

func kindOf(f *pflag.Flag) optionfile.Kind {
	if _, several := f.Value.(pflag.SliceValue); several {
		return optionfile.List
	}
	return optionfile.Kind(f.Value.Type())
}

var namedFlags = regexp.MustCompile(`--([a-z0-9-]+)`)

// located adds to a refusal the file positions of the options whose flags it names.
func (o *options) located(err error) error {
	explicit, ok := errors.AsType[*exitError](err)
	if !ok || explicit.code != exitUsage {
		return err
	}
	var at []string
	for _, named := range namedFlags.FindAllStringSubmatch(err.Error(), -1) {
		if from, there := o.origins[named[1]]; there && from.from == fromFile {
			at = append(at, keyOf(o.flags.Lookup(named[1]))+" at "+from.where)
		}
	}
	if len(at) == 0 {
		return err
	}
	return withHint(fmt.Errorf("%w (%s)", err, strings.Join(at, ", ")), explicit.code, explicit.hint)
}
