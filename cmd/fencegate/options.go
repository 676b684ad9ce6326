package main

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/fencegate/fencegate/internal/optionfile"
)

// sections are the sections of serve's file. A flag that begins with a section and a dash is a key in it: --pg-tls-cert
// is pg.tls.cert. Longer names come first.
var sections = []string{"api.tls", "pg.tls", "s3.tls", "redis.tls", "api", "log", "metrics", "pg", "postgres", "redis", "s3", "sql", "sweep"}

// keysHint is the hint for a misspelled option.
const keysHint = "fencegate config print shows the keys that are set; fencegate serve --help has all flags: --pg-tls-cert is pg.tls.cert"

// Annotations of flags of serve.
const (
	fileKey    = "key in the file" // if it differs from the flag's name; "": not in the file
	reloadable = "reloadable"      // SIGHUP applies a change in the file; the value is the condition, if any
)

func markKey(f *pflag.FlagSet, flag, key string) { annotate(f, flag, fileKey, key) }

// keyOf returns a flag's key in serve's file, or "".
func keyOf(f *pflag.Flag) string {
	if marked := f.Annotations[fileKey]; marked != nil {
		return marked[0]
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
	flags   *pflag.FlagSet
	path    string // of the file; "": none
	file    *optionfile.File
	origins map[string]origin // by flag; absent for defaults
}

// registerFile adds the flag that names the file.
func (o *options) registerFile(f *pflag.FlagSet) {
	o.flags, o.origins = f, map[string]origin{}
	f.StringVar(&o.path, "config", "", "YAML file with the options, see docs/configuration.md; variables override it, and flags override variables (default: none)")
	markKey(f, "config", "")
	markNeverEmpty(f, "config")
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
	switch f.Value.Type() {
	case "bool":
		return optionfile.Bool
	case "int":
		return optionfile.Number
	case "duration":
		return optionfile.Duration
	case "stringSlice", "stringArray":
		return optionfile.List
	}
	return optionfile.Text
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
