package house

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode"
)

// root is the repository.
const root = "../.."

// tics are turns of phrase that say less than the usual words do; beside each, what to write.
var tics = []struct{ tic, write string }{
	{"anew", "again, from the start, new"},
	{"mend", "fix, repair"},
	{"mends", "fixes, repairs"},
	{"mended", "fixed, repaired"},
	{"told", "notified, configured, given; or name who says what"},
	{"meanwhile", "at the same time, until then, during …; or name the time"},
	{"for good", "permanently"},
	{"by hand", "manually; or name the command"},
	{"in vain", "without effect, without result"},
	{"what it has", "name the thing"},
	{"who is known by", "name the kind of login"},
	{"belong into", "are configured in, belong in"},
	{"belongs into", "is configured in, belongs in"},
	{"lest", "so that … not"},
	{"is looked at", "is checked"},
	{"are looked at", "are checked"},
	{"heard out", "answered"},
	{"goes without", "does not have"},
}

// Words that no file, type, function, method, field or package-level name consists of or ends with: they do not say what
// the thing is. Local variables are free, and so are booleans, and names that are fencegate's own such as ErrHeld.
var names = words(`looked seen held keyed returns told named endure endures dressed farewell inVain vain heed untilUnread unread
	unjudged sayIDsOnce herald ear deaf noticing holdings retiring admitting anew mend meanwhile`)

func words(list string) map[string]bool {
	set := map[string]bool{}
	for w := range strings.FieldsSeq(list) {
		set[strings.ToLower(w)] = true
	}
	return set
}

// tracked returns the files of the repository, with paths from its root.
func tracked(t *testing.T) []string {
	t.Helper()
	var files []string
	err := filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
		name := d.Name()
		switch {
		case err != nil:
			return err
		case d.IsDir() && (strings.HasPrefix(name, ".") && path != root && name != ".ci" && name != ".github" || path == filepath.Join(root, "internal/house")):
			return filepath.SkipDir
		case path == filepath.Join(root, "bin"), path == filepath.Join(root, "dist"): // made by make
			return filepath.SkipDir
		case d.Type().IsRegular():
			rel, _ := filepath.Rel(root, path)
			files = append(files, filepath.ToSlash(rel))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

func TestNoTextHasATic(t *testing.T) {
	t.Parallel()
	kinds := regexp.MustCompile(`(\.(go|md|sql|lua|sh|yml|yaml|html|css|js|json|py|txt|rules|service|env)|(^|/)(Makefile|Dockerfile|[a-z-]+))$`)
	// Databases record the hash of a state's text, so it does not change.
	recorded := regexp.MustCompile(`(^|/)(testdata|LICENSE|go\.(mod|sum)|package-lock\.json|migrations/[a-z]+/state/)`)
	for _, f := range tracked(t) {
		if !kinds.MatchString(f) || recorded.MatchString(f) {
			continue
		}
		text, err := os.ReadFile(filepath.Join(root, f))
		if err != nil {
			continue // a link to a folder
		}
		for i, line := range strings.Split(string(text), "\n") {
			for _, w := range tics {
				if hasWords(line, w.tic) && !(w.tic == "told" && keepsTold.MatchString(f)) {
					t.Errorf("%s:%d: %q: write %s", f, i+1, w.tic, w.write)
				}
			}
		}
	}
}

// The result of fence.end_holders has a column of that name. PostgreSQL renames it only by dropping the function, which
// anybody's view of it would prevent.
var keepsTold = regexp.MustCompile(`^(migrations/(fence/code/arm|schema)\.sql|conformance/golden/transcripts/rights-postgresql\.txt|internal/mutants/table/.*)$`)

// hasWords reports whether a line has these words as words, in any case.
func hasWords(line, words string) bool {
	line = strings.ToLower(line)
	for from := 0; ; {
		i := strings.Index(line[from:], words)
		if i < 0 {
			return false
		}
		i += from
		end := i + len(words)
		if (i == 0 || !isWord(line[i-1])) && (end == len(line) || !isWord(line[end])) {
			return true
		}
		from = i + 1
	}
}

func isWord(b byte) bool { return b == '_' || b == '-' || 'a' <= b && b <= 'z' || '0' <= b && b <= '9' }

func TestNoNameIsATic(t *testing.T) {
	t.Parallel()
	fset := token.NewFileSet()
	for _, f := range tracked(t) {
		if !strings.HasSuffix(f, ".go") {
			continue
		}
		if base := strings.TrimSuffix(strings.TrimSuffix(filepath.Base(f), ".go"), "_test"); names[strings.ReplaceAll(base, "_", "")] {
			t.Errorf("%s: the file's name does not say what it holds", f)
		}
		file, err := parser.ParseFile(fset, filepath.Join(root, f), nil, parser.SkipObjectResolution)
		if err != nil {
			t.Error(err)
			continue
		}
		check := func(kind string, typ ast.Expr, ids ...*ast.Ident) {
			for _, id := range ids {
				if isBool(typ) {
					return
				}
				if all := strings.ToLower(id.Name); names[all] || names[lastWord(id.Name)] {
					t.Errorf("%s:%d: %s %s does not say what it is", f, fset.Position(id.Pos()).Line, kind, id.Name)
				}
			}
		}
		for _, d := range file.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				check("func", onlyResult(d.Type), d.Name)
			case *ast.GenDecl:
				for _, s := range d.Specs {
					switch s := s.(type) {
					case *ast.ValueSpec:
						check("value", s.Type, s.Names...)
					case *ast.TypeSpec:
						check("type", nil, s.Name)
						switch typ := s.Type.(type) {
						case *ast.StructType:
							for _, field := range typ.Fields.List {
								check("field", field.Type, field.Names...)
							}
						case *ast.InterfaceType:
							for _, m := range typ.Methods.List {
								check("method", nil, m.Names...)
							}
						}
					}
				}
			}
		}
	}
}

func isBool(typ ast.Expr) bool {
	id, ok := typ.(*ast.Ident)
	return ok && id.Name == "bool"
}

func onlyResult(f *ast.FuncType) ast.Expr {
	if f.Results == nil || len(f.Results.List) != 1 {
		return nil
	}
	return f.Results.List[0].Type
}

// lastWord returns the last word of a name in camel case, in lower case. A name of one word, a test's name, and one that
// ends with Held have none: a resource is held.
func lastWord(name string) string {
	if strings.HasPrefix(name, "Test") || strings.HasPrefix(name, "Example") || strings.HasSuffix(name, "Held") {
		return ""
	}
	for i := len(name) - 1; i > 0; i-- {
		if unicode.IsUpper(rune(name[i])) {
			return strings.ToLower(name[i:])
		}
	}
	return ""
}
