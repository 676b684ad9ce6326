package main

import (
	"bytes"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/internal/optionfile"
	"github.com/fencegate/fencegate/migrations"
)

var updateReference = flag.Bool("update", false, "write docs/reference again")

// The pages of docs/reference and openapi.json are generated from the code, and committed.
func TestTheReferenceIsCurrent(t *testing.T) {
	t.Parallel()
	for name, page := range map[string]string{
		"docs/reference/commands.md":      commandsPage(newRoot(env{})),
		"docs/reference/configuration.md": configurationPage(),
		"docs/reference/http.md":          httpPage(t),
		"docs/reference/refusals.md":      refusalsPage(),
		"docs/reference/sql.md":           sqlPage(t),
		"docs/reference/sqlstates.md":     sqlStatesPage(t),
		"gateway/api/openapi.json":        openAPIDocument(t),
	} {
		path := filepath.Join("..", "..", filepath.FromSlash(name))
		if *updateReference {
			if err := os.WriteFile(path, []byte(page), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		committed, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if string(committed) != page {
			t.Errorf("%s differs from the code: make reference", name)
		}
	}
}

func commandsPage(root *cobra.Command) string {
	var page bytes.Buffer
	page.WriteString("# Commands and flags\n\nMade from the program by `make reference`. [The command line](../cli.md) has an overview and the exit codes. Each\n" +
		"flag can also come from the environment, by the variable beside it.\n")
	var add func(cmd *cobra.Command)
	add = func(cmd *cobra.Command) {
		if cmd.Hidden || cmd.Name() == "help" || cmd.Name() == "completion" {
			return
		}
		if cmd.Runnable() && cmd != root {
			fmt.Fprintf(&page, "\n## %s\n\n```\n%s\n```\n\n%s\n", cmd.CommandPath(), cmd.UseLine(), strings.TrimSpace(strings.ReplaceAll(or(cmd.Long, cmd.Short), "\t", "  ")))
			if cmd.Example != "" {
				fmt.Fprintf(&page, "\n```sh\n%s\n```\n", strings.ReplaceAll(strings.TrimRight(cmd.Example, "\n"), "  fencegate", "fencegate"))
			}
			addFlags(&page, cmd)
		}
		for _, sub := range cmd.Commands() {
			add(sub)
		}
	}
	add(root)
	return page.String()
}

func or(text, other string) string {
	if text != "" {
		return text
	}
	return other
}

func addFlags(page *bytes.Buffer, cmd *cobra.Command) {
	if cmd.HasParent() && cmd.Parent().Name() == "config" {
		page.WriteString("\nIt has the flags of `fencegate serve`.\n")
		return
	}
	header := "\n| flag | variable | default | |\n|---|---|---|---|\n"
	cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
		if f.Hidden || f.Name == "help" || f.Name == "version" {
			return
		}
		variable, value := "`"+envName(f.Name)+"`", ""
		if f.Annotations[typedOnly] != nil {
			variable = "none: it must be typed"
		}
		switch {
		case f.Name == "holder" && f.DefValue != "":
			value = "host/process id"
		case f.DefValue != "" && f.DefValue != "[]":
			value = "`" + f.DefValue + "`"
		}
		fmt.Fprintf(page, "%s| `--%s` | %s | %s | %s |\n", header, f.Name, variable, value, strings.ReplaceAll(f.Usage, "|", `\|`))
		header = ""
	})
}

func configurationPage() string {
	var page bytes.Buffer
	page.WriteString("# Options of serve\n\nMade from the program by `make reference`. [Configuration](../configuration.md) explains the file, what counts before\n" +
		"what, and what a SIGHUP does: where the last column is empty, a change in the file counts from the next start on.\n")
	var o options
	o.flags = newServe(env{}).Flags()
	section := "-"
	for _, f := range o.inOrder() {
		key := keyOf(f)
		within, _, nested := strings.Cut(key, ".")
		if !nested {
			within = ""
		}
		if within != section {
			section = within
			fmt.Fprintf(&page, "\n## %s\n\n| key | flag | variable | kind | default | | SIGHUP |\n|---|---|---|---|---|---|---|\n", or(within, "Of no section"))
		}
		value, when := "", ""
		if f.DefValue != "" && f.DefValue != "[]" {
			value = "`" + f.DefValue + "`"
		}
		if condition, may := f.Annotations[reloadable]; may {
			when = or(strings.Join(condition, ""), "counts")
		}
		fmt.Fprintf(&page, "| `%s` | `--%s` | `%s` | %s | %s | %s | %s |\n", key, f.Name, envName(f.Name), kindNames[kindOf(f)], value, strings.ReplaceAll(f.Usage, "|", `\|`), when)
	}
	return page.String()
}

var kindNames = map[optionfile.Kind]string{
	optionfile.Text: "text", optionfile.Bool: "true or false", optionfile.Number: "number", optionfile.Duration: "duration", optionfile.List: "list of texts",
}

func refusalsPage() string {
	var page bytes.Buffer
	page.WriteString("# Refusals\n\nMade from `fence.Codes` by `make reference`. A refusal has the same SQLSTATE on every surface.\n\n" +
		"| SQLSTATE | Go | HTTP | problem | S3 | exit code | what to do |\n|---|---|---:|---|---|---:|---|\n")
	for _, c := range fence.Codes {
		fmt.Fprintf(&page, "| `%s` | %s | %d | `%s` | %d `%s` | %d | %s |\n", c.SQLState, c.Err, c.HTTPStatus, c.Problem, c.S3Status, c.S3Code, c.ExitCode, c.Hint)
	}
	return page.String()
}

// public lists the schema's functions for users, in the order of the page.
var public = []string{
	"use", "check", "outcome", "protect", "unprotect", "enforce", "refresh", "protect_schema", "unprotect_schema", "install_event_triggers", "uninstall_event_triggers",
	"take", "position", "wait_for", "identity",
}

func sqlPage(t *testing.T) string {
	t.Helper()
	found := sqlFunctions(t)
	var page bytes.Buffer
	page.WriteString("# SQL functions\n\nMade from the SQL by `make reference`: what people call, in the schema `fence`. [The fence in\nPostgreSQL](../fence.md) explains them.\n")
	for _, name := range public {
		if len(found[name]) == 0 {
			t.Errorf("the schema has no function fence.%s", name)
		}
		for _, text := range found[name] {
			page.WriteString(text)
		}
	}
	return page.String()
}

// wrapped wraps a comment at 120 characters. A comment with indented lines, such as an example, is left unchanged.
func wrapped(comment string) string {
	if strings.Contains(comment, "\n ") || strings.Contains(comment, "\n\n") || strings.Contains(comment, "\n--") {
		return comment
	}
	var lines []string
	line := ""
	for word := range strings.FieldsSeq(comment) {
		switch {
		case line == "":
			line = word
		case utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) <= 120:
			line += " " + word
		default:
			lines, line = append(lines, line), word
		}
	}
	return strings.Join(append(lines, line), "\n")
}

// sqlFunctions returns the functions of the set fence, each with the comment above it.
func sqlFunctions(t *testing.T) map[string][]string {
	t.Helper()
	made := regexp.MustCompile(`(?m)((?:^-- ?.*\n)+)CREATE OR REPLACE (FUNCTION|PROCEDURE) fence\.(\w+)(\((?:[^()]|\([^()]*\))*\)(?: RETURNS [^$]*?)?)(?:\s+LANGUAGE|\s+AS)`)
	found := map[string][]string{}
	err := fs.WalkDir(migrations.FS, "fence/code", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || filepath.Ext(path) != ".sql" {
			return err
		}
		text, err := fs.ReadFile(migrations.FS, path)
		if err != nil {
			return err
		}
		for _, m := range made.FindAllStringSubmatch(string(text), -1) {
			comment := strings.TrimSpace(strings.ReplaceAll(strings.TrimPrefix(m[1], "-- "), "\n-- ", "\n"))
			found[m[3]] = append(found[m[3]], fmt.Sprintf("\n## fence.%s\n\n```sql\n%s fence.%s%s\n```\n\n%s\n", m[3], m[2], m[3], strings.Join(strings.Fields(m[4]), " "), wrapped(comment)))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}
