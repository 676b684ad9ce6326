package main

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/migrations"
)

// sqlState is a row of the page. Its raisers are found in the SQL and in the ports.
type sqlState struct{ code, condition, meaning, do string }

const again = "Try again."

// sqlStates are the codes that fencegate raises itself, besides the refusals of [fence.Codes].
var sqlStates = []sqlState{
	{"ZF000", "", "undoes a part of a function's work; no client receives it", ""},
	{"ZF101", "", "leases of this database come from another source", "Start with the recorded `--lock`, or change it: `fencegate fence source`."},
	{"ZF102", "", "PostgreSQL may have forgotten fences: its identity is not the recorded one", "`fencegate fence invalidate-all --yes`."},
	{"ZO001", "", "there is no such bucket", "Create it."},
	{"ZO002", "", "a precondition failed; DETAIL is `If-Match` or `If-None-Match`", "Read the object, and decide again."},
	{"ZO003", "", "there is no such key", "Look at the key's spelling; a precondition may need the object."},
	{"ZO004", "", "the upload or stage was given up before it was complete: its blob is condemned or unknown", "Upload again."},
	{"ZO005", "", "the bucket is not empty", "Delete its objects and versions first."},
	{"ZO006", "", "the invocation id was used for another request", "Use a new id for each request."},
	{"ZO007", "", "the rule can't change while objects lie there", "Remove them, or use another bucket or prefix."},
	{"ZO008", "", "there is no such multipart upload: it was completed or aborted, or never was", "Begin a new one."},
	{"ZO009", "", "there is no such version of the key", "List the versions."},
	{"ZO010", "", "there is no staged upload of this id", "Upload again."},
	{"ZO011", "", "the staged upload was published already", "Nothing: look whether the transaction before was committed."},
	{"ZO012", "", "the object is written once, and its retention has not ended; DETAIL says when it does", "Wait, or write another key."},
	{"ZO013", "", "the retention can be extended, but shortened only while the bucket is empty", "Keep it, or use another bucket."},
	{"08006", "connection_failure", "the port closes a session: PostgreSQL is gone, the login took too long, or the client is too slow", "Connect again; a COMMIT without an answer is unknown."},
	{"08P01", "protocol_violation", "the startup packet is malformed or too long", "Fix the driver."},
	{"0A000", "feature_not_supported", "the client asks for another protocol than version 3", "Use a driver of this protocol."},
	{"22021", "character_not_in_repertoire", "a value in the result can't stand in JSON", "Convert it in the statement."},
	{"22023", "invalid_parameter_value", "an argument is malformed; the message names it", "Correct the argument that it names."},
	{"25000", "invalid_transaction_state", "the function needs READ COMMITTED; or `fence.drain` follows a raise that is not committed", "Call it at READ COMMITTED; drain after the COMMIT of the raise."},
	{"25001", "active_sql_transaction", "`fence.take` commits, so it can't run inside a transaction block", "Call it by itself, with autocommit."},
	{"25006", "read_only_sql_transaction", "this server is a standby", "Connect to the primary."},
	{"25P03", "idle_in_transaction_session_timeout", "the gateway's idle-in-transaction timeout is over", "Commit sooner, or raise the timeout."},
	{"28000", "invalid_authorization_specification", "no user is named, or a client certificate is missing", "Name the user; present a certificate."},
	{"3D000", "invalid_catalog_name", "the gateway does not serve this database", "Use the database of `GET /v1/endpoints`."},
	{"40001", "serialization_failure", "the fence was raised after the transaction's snapshot", "Run the transaction again, under a current grant."},
	{"42501", "insufficient_privilege", "the login has no right to the call", "Grant what the hint names."},
	{"42704", "undefined_object", "the pattern is not in `fence.unsealed`, or the fence has no such option", "Look at its spelling."},
	{"42804", "datatype_mismatch", "the stamped column is no `bigint`", "Use a column of this type."},
	{"42809", "wrong_object_type", "the relation can't be guarded: it is no ordinary table", "Protect the table behind it."},
	{"53300", "too_many_connections", "a limit of the port is reached, for all or for the role", "Close connections, or raise the limit."},
	{"54000", "program_limit_exceeded", "no token or epoch is left above the recorded one", "Use another resource."},
	{"55000", "object_not_in_prerequisite_state", "a guard is not as the call or command needs it; or a standby was promoted too early", "As the hint says."},
	{"55006", "object_in_use", "leases of PostgreSQL are held, so their source can't change", "Wait for their end, or `--end-leases`."},
	{"55P03", "lock_not_available", "another transaction has what the call needs", again},
	{"57014", "query_canceled", "the time that the caller gave is over", "Allow more time."},
	{"57P01", "admin_shutdown", "the session is ended by an operator, a stop, a new policy or another PostgreSQL", "Connect again."},
	{"57P03", "cannot_connect_now", "the gateway stops, or can't judge a grant or give a lease now", again},
	{"57P05", "idle_session_timeout", "the gateway's idle-session timeout is over", "Connect again."},
	{"P0002", "no_data_found", "`fence.lock_group` is empty: it was restored without its row", "`fencegate fence new-group --yes`, with every gateway stopped."},
	{"XX000", "internal_error", "a fence changed while its turn was held, which can't be", "Report it."},
}

// readStates are PostgreSQL's own codes that fencegate distinguishes and does not raise.
var readStates = []string{"01000", "22P05", "26000", "3F000", "40P01", "42703", "42883", "42P01", "42P05"}

func sqlStatesPage(t *testing.T) string {
	t.Helper()
	raised := raisedInSQL(t)
	for code, where := range raisedInGo(t) {
		raised[code] = append(raised[code], where...)
	}
	rows := slices.Clone(sqlStates)
	for _, c := range fence.Codes {
		rows = append(rows, sqlState{c.SQLState, "", c.Err.Error(), c.Hint})
	}
	slices.SortFunc(rows, func(a, b sqlState) int { return strings.Compare(order(a.code), order(b.code)) })
	var page bytes.Buffer
	page.WriteString("# SQLSTATEs\n\nMade from the SQL and the ports by `make reference`: each SQLSTATE that fencegate raises, and where. `ZF` is of the\n" +
		"fence, `ZO` of objects; the others are PostgreSQL's, which raises more by itself. [Refusals](refusals.md) has the\nHTTP, S3 and exit codes of `ZF001` to `ZF005`. psql shows the code after `\\set VERBOSITY verbose`.\n\n" +
		"| SQLSTATE | condition | meaning | what to do | raised by |\n|---|---|---|---|---|\n")
	for _, row := range rows {
		where := raised[row.code]
		if delete(raised, row.code); len(where) == 0 {
			t.Errorf("nothing raises %s", row.code)
		}
		slices.Sort(where)
		condition := row.condition
		if condition != "" {
			condition = "`" + condition + "`"
		}
		fmt.Fprintf(&page, "| `%s` | %s | %s | %s | %s |\n", row.code, condition, row.meaning, row.do, strings.Join(slices.Compact(where), ", "))
	}
	for code, where := range raised {
		t.Errorf("%s, raised by %v, is not in the table", code, where)
	}
	return page.String()
}

// order sorts fencegate's own codes first.
func order(code string) string {
	if strings.HasPrefix(code, "Z") {
		return " " + code
	}
	return code
}

var (
	sqlRaise  = regexp.MustCompile(`ERRCODE = '(\w+)'|fence\.refusal\('(\w+)'|CREATE OR REPLACE (?:FUNCTION|PROCEDURE) (\w+\.\w+)|SELECT ROW\(NULL, '(Z\w+)'|ERRCODE = CASE [^;]* THEN '(\w+)' ELSE '(\w+)' END`)
	sqlRaised = regexp.MustCompile(`ERRCODE = (?:v\.state|'|CASE )`)
)

// raisedInSQL returns the functions that raise a code, or decide that
// it is raised. PostgreSQL's name for a code counts as the code.
func raisedInSQL(t *testing.T) map[string][]string {
	t.Helper()
	codes := map[string]string{}
	for _, row := range sqlStates {
		if row.condition != "" {
			codes[row.condition] = row.code
		}
	}
	raised := map[string][]string{}
	err := fs.WalkDir(migrations.FS, ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || filepath.Ext(path) != ".sql" || strings.HasSuffix(path, "schema.sql") {
			return err
		}
		text, err := fs.ReadFile(migrations.FS, path)
		if err != nil {
			return err
		}
		by := "`fencegate migrate up`"
		for _, m := range sqlRaise.FindAllStringSubmatch(string(text), -1) {
			if m[3] != "" {
				by = "`" + m[3] + "`"
				continue
			}
			for _, code := range []string{m[1] + m[2] + m[4] + m[5], m[6]} {
				if named := codes[code]; named != "" {
					code = named
				}
				if code != "" {
					raised[code] = append(raised[code], by)
				}
			}
		}
		if strings.Count(string(text), "ERRCODE") != len(sqlRaised.FindAllString(string(text), -1)) {
			t.Errorf("%s raises what is neither a text nor a verdict", path)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return raised
}

// raisedInGo returns the codes that the ports raise themselves, in a field named code or SQLState.
func raisedInGo(t *testing.T) map[string][]string {
	t.Helper()
	raised := map[string][]string{}
	for dir, by := range map[string]string{"gateway/pgwire": "the PostgreSQL port", "gateway/fencedsql": "`POST /v1/sql`"} {
		constants, fields := map[string]string{}, []ast.Expr{}
		for _, file := range goFiles(t, dir) {
			ast.Inspect(file, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.ValueSpec:
					if value, ok := stateOf(n.Values...); ok {
						constants[n.Names[0].Name] = value
					}
				case *ast.KeyValueExpr:
					if key, ok := n.Key.(*ast.Ident); ok && (key.Name == "code" || key.Name == "SQLState") {
						fields = append(fields, n.Value)
					}
				}
				return true
			})
		}
		for _, field := range fields {
			code, ok := stateOf(field)
			if name, isName := field.(*ast.Ident); isName {
				code, ok = constants[name.Name]
			}
			if ok {
				raised[code] = append(raised[code], by)
			}
		}
	}
	return raised
}

var isState = regexp.MustCompile(`^(?:Z[FO]|[0-9][0-9A-Z])[0-9A-Z]{3}$`)

func stateOf(values ...ast.Expr) (code string, ok bool) {
	if len(values) != 1 {
		return "", false
	}
	literal, ok := values[0].(*ast.BasicLit)
	if !ok || literal.Kind != token.STRING {
		return "", false
	}
	code, err := strconv.Unquote(literal.Value)
	return code, err == nil && isState.MatchString(code)
}

// goFiles returns the files below a folder, without tests.
func goFiles(t *testing.T, dir string) (files []*ast.File) {
	t.Helper()
	err := filepath.WalkDir(filepath.Join("..", "..", filepath.FromSlash(dir)), func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() || filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go") {
			return err
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		files = append(files, parsed)
		return err
	})
	if err != nil || len(files) == 0 {
		t.Fatal(dir, err)
	}
	return files
}

// Each code that Go names is either raised by fencegate and in the table, or one that fencegate only reads.
func TestTheTableHasEachSQLSTATEThatGoNames(t *testing.T) {
	t.Parallel()
	known := map[string]bool{} // value: Go names it
	for _, code := range readStates {
		known[code] = false
	}
	for _, row := range sqlStates {
		known[row.code] = true // some are only in the SQL
	}
	for _, c := range fence.Codes {
		known[c.SQLState] = true
	}
	for _, dir := range []string{"client", "cmd", "fence", "gateway", "internal/doctor", "lock", "migrate"} {
		for _, file := range goFiles(t, dir) {
			ast.Inspect(file, func(n ast.Node) bool {
				value, ok := n.(ast.Expr)
				if !ok {
					return true
				}
				if code, ok := stateOf(value); ok {
					if _, there := known[code]; !there {
						t.Errorf("%s names %s, which is neither in the table nor among those that are read", dir, code)
					}
					known[code] = true
				}
				return true
			})
		}
	}
	for _, code := range slices.Sorted(maps.Keys(known)) {
		if !known[code] {
			t.Errorf("nothing reads %s", code)
		}
	}
}
