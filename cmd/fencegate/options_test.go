package main

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/fencegate/fencegate/gateway"
	"github.com/fencegate/fencegate/internal/option"
	"github.com/fencegate/fencegate/internal/optionfile"
)

// served returns the options of serve.
func served(t *testing.T) *serveFlags {
	t.Helper()
	o := &serveFlags{}
	o.register(&cobra.Command{})
	return o
}

func TestHelpShowsTheCommonFlagsAndAllOfThemWhenAsked(t *testing.T) {
	t.Parallel()
	o := served(t)
	line := func(help, flag string) (found string) {
		for line := range strings.Lines(help) {
			if strings.HasPrefix(strings.TrimSpace(line)+" ", "--"+flag+" ") {
				found = line // the last one: examples come first
			}
		}
		return found
	}
	for _, command := range []string{"serve", "config check", "config print"} {
		_, short, _ := cli(t, nil, append(strings.Fields(command), "--help")...)
		_, all, _ := cli(t, nil, append(strings.Fields(command), "--help=all")...)
		shown := 0
		for _, r := range o.options.table {
			text := line(all, r.Flag)
			if !strings.Contains(text, r.Help) {
				t.Errorf("%s --help=all: no --%s", command, r.Flag)
			}
			if value := o.options.flags.Lookup(r.Flag).DefValue; !slices.Contains([]string{"", "[]", "0", "0s", "false"}, value) && !strings.Contains(text, "(default "+value) && !strings.Contains(text, "(default \""+value) {
				t.Errorf("%s --help=all: no default %s in %s", command, value, text)
			}
			if (line(short, r.Flag) != "") != r.Common {
				t.Errorf("%s --help: --%s is shown: %v", command, r.Flag, !r.Common)
			}
			if r.Common {
				shown++
			}
		}
		if shown < 15 || shown > 25 || !strings.Contains(short, fmt.Sprintf("fencegate %s --help=all shows %d more flags.", command, len(o.options.table)-shown)) {
			t.Errorf("%s: %d flags\n%s", command, shown, short)
		}
	}
	if code, _, stderr := cli(t, nil, "serve", "--help=most"); code != exitUsage {
		t.Errorf("%d %s", code, stderr)
	}
}

func TestEveryDefaultIsInTheReference(t *testing.T) {
	t.Parallel()
	page, o := configurationPage(), served(t)
	var library gateway.Config
	library.Table().SetDefaults()
	fields := library.Table()
	for _, r := range o.options.table {
		f := o.options.flags.Lookup(r.Flag)
		if f == nil {
			t.Errorf("--%s is no flag", r.Flag)
			continue
		}
		i := slices.IndexFunc(fields, func(other option.Row) bool { return other.Field == r.Field })
		if i >= 0 && r.Default != nil && fmt.Sprint(reflect.ValueOf(fields[i].At).Elem()) != f.DefValue {
			t.Errorf("%s: %s by a flag, another default in Go", r.Field, f.DefValue)
		}
		value := "  "
		if f.DefValue != "" && f.DefValue != "[]" {
			value = " `" + f.DefValue + "` "
		}
		if row := "| `--" + r.Flag + "` | `" + envName(r.Flag) + "` | " + kindNames[kindOf(f)] + " |" + value + "| "; r.Key != "-" && strings.Count(page, row) != 1 {
			t.Errorf("%q is missing in the reference", row)
		}
	}
}

// A bad value is refused with the option's name, wherever it comes from, before serve does anything.
func TestABadValueIsRefusedByTheNameOfItsOption(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	key := filepath.Join(dir, "key")
	writeFile(t, key, masterKey)
	texts := map[string]string{
		"lock": "etcd", "log-level": "loud", "log-format": "xml", "s3-domain": "X", "redis-prefix": "a:", "postgres-url": "nonsense://geheim@x", "sql-url": "nonsense://geheim@x",
		"api-listen": "127.0.0.1:99999", "pg-listen": "7070", "metrics-listen": "7070", "pg-policy": "*=shut", "pg-proxy-from": "10.0.0.0", "bucket": "orders", "pg-advertise": "x", "s3-advertise": "x", "pg-policy-file": dir,
	}
	checked := 0
	for _, r := range served(t).options.table {
		f := served(t).options.flags.Lookup(r.Flag)
		bad := []string{texts[r.Flag]}
		switch kindOf(f) {
		case optionfile.Number:
			bad = []string{"-1", "much"}
		case optionfile.Duration:
			bad = []string{"-1s", "soon"}
		case optionfile.Bool:
			bad = []string{"perhaps"}
		case optionfile.Text:
			if r.Secret && r.Flag != "s3-access-key" && texts[r.Flag] == "" {
				bad = []string{""}
			}
		case optionfile.List:
		}
		if bad[0] == "" && !r.Secret || r.Flag == "s3-access-key" || r.Key == "-" {
			continue // any text
		}
		for _, value := range bad {
			checked++
			file := filepath.Join(dir, fmt.Sprint(checked)+".yaml")
			writeFile(t, file, fileWith(keyOf(f), value, kindOf(f)))
			base := []string{"--lock=postgres", "--postgres-url=postgres://a@127.0.0.1:1/b", "--master-key-file=" + key, "--blobs=" + dir}
			if strings.HasPrefix(keyOf(f), "redis.") {
				base = append(base[1:], "--redis=127.0.0.1:1")
			}
			base = slices.DeleteFunc(base, func(arg string) bool { return strings.HasPrefix(arg, "--"+r.Flag+"=") })
			for how, c := range map[string]struct {
				vars map[string]string
				args []string
				says []string
			}{
				"flag":     {nil, []string{"--" + r.Flag + "=" + value}, []string{"--" + r.Flag}},
				"variable": {map[string]string{envName(r.Flag): value}, nil, []string{"ariable " + envName(r.Flag)}},
				"file":     {nil, []string{"--config", file}, []string{keyOf(f), file + ":"}},
			} {
				for _, command := range [][]string{{"serve"}, {"config", "check"}} {
					code, stdout, stderr := cli(t, c.vars, slices.Concat(command, base, c.args)...)
					for _, want := range c.says {
						if code != exitUsage || stdout != "" || !strings.Contains(stderr, want) || strings.Contains(stderr, "geheim") {
							t.Errorf("%s by %s to %s: %d %s; want %s", r.Flag, how, command, code, stderr, want)
						}
					}
				}
			}
		}
	}
	if checked < 70 {
		t.Errorf("only %d bad values", checked)
	}
}

// fileWith is a file with one option.
func fileWith(key, value string, kind optionfile.Kind) string {
	if kind == optionfile.Text || kind == optionfile.List {
		value = "'" + value + "'"
	}
	sections := strings.Split(key, ".")
	for i := len(sections) - 1; i > 0; i-- {
		value = "{" + sections[i] + ": " + value + "}"
	}
	return sections[0] + ": " + value + "\n"
}

// What a file with a secret holds is in no message, also if it is not what the option wants.
func TestConfigCheckShowsNoSecret(t *testing.T) {
	t.Parallel()
	for _, r := range served(t).options.table {
		if !r.Secret || r.Flag == "config" || r.Flag == "pg-policy" || r.Flag == "s3-access-key" {
			continue
		}
		secret := filepath.Join(t.TempDir(), "secret")
		if err := os.WriteFile(secret, []byte("geheim geheim\ngeheim: geheim\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		code, stdout, stderr := cli(t, nil, "config", "check", "--config", optionFile(t, ""), "--"+r.Flag, secret)
		if code != exitUsage || strings.Contains(stdout+stderr, "geheim") {
			t.Errorf("--%s: %d %s%s", r.Flag, code, stdout, stderr)
		}
	}
}

func TestAReloadAppliesWhatTheTableSays(t *testing.T) {
	t.Parallel()
	other := map[string]string{"string": "x", "bool": "true", "int": "77", "duration": "77m", "stringSlice": "x", "stringArray": "*=open"}
	applies := map[string]int{}
	for _, r := range served(t).options.table {
		if r.Key == "-" {
			continue
		}
		for _, principals := range []string{"", "p"} {
			o, next := served(t), served(t)
			o.principalsFile, next.principalsFile = principals, principals
			f := next.options.flags.Lookup(r.Flag)
			text := other[f.Value.Type()]
			if f.DefValue == "true" {
				text = "false"
			}
			if err := setFlag(f, []string{text}); err != nil {
				t.Fatal(err)
			}
			want := r.Reload == option.Applies || r.Reload == option.WithPrincipals && principals != ""
			applied, waiting := o.changes(next)
			if slices.Contains(applied, r.Flag) != want || slices.Contains(waiting, r.Flag) == want || len(applied)+len(waiting) != 1 {
				t.Errorf("--%s with principals %q: applied %q, waiting %q", r.Flag, principals, applied, waiting)
			}
			applies[r.Reload]++
		}
	}
	if applies[option.Applies] != 6 || applies[option.WithPrincipals] != 4 {
		t.Errorf("%v", applies)
	}
}

// Commands beside serve have the flags of the Redis nodes without its rules for the file.
func TestTheFlagsOfTheNodesAreTheSameForEveryCommand(t *testing.T) {
	t.Parallel()
	f := pflag.NewFlagSet("", pflag.ContinueOnError)
	new(redisFlags).register(f, " (required with --lock redis)")
	f.VisitAll(func(own *pflag.Flag) {
		if of := served(t).options.flags.Lookup(own.Name); of == nil || of.Usage != own.Usage || of.DefValue != own.DefValue || own.Annotations != nil {
			t.Errorf("--%s: %+v and %+v", own.Name, own, of)
		}
	})
}
