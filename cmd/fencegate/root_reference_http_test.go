package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"net/http"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/gateway/access"
	"github.com/fencegate/fencegate/gateway/api"
	"github.com/fencegate/fencegate/wire"
)

// httpPage renders the routes of gateway/api, and the fields of wire with their comments.
func httpPage(t *testing.T) string {
	t.Helper()
	var page bytes.Buffer
	page.WriteString("# HTTP API\n\nMade from the routes of `gateway/api` and the types of `wire` by `make reference`. [The HTTP API](../http-api.md)\n" +
		"explains it, [principals](../principals.md) the rights. Requests and answers are JSON. A time is as in RFC 3339, a\nduration as in `30s`, a number whose name ends in `_ms` milliseconds. Fencing tokens are text, because they may exceed\nwhat a double holds. Each answer has the header `X-Request-Id`.\n\n## Calls\n\n" +
		"| call | right | does |\n|---|---|---|\n")
	bodies := types{docs: commentsOf(t, "wire", "fence")}
	var calls bytes.Buffer
	for _, r := range api.Routes() {
		call := r.Method + " " + r.Path
		fmt.Fprintf(&page, "| [`%s`](#%s) | %s | %s |\n", call, anchor(call), rightsOf(r), r.Does)
		addCall(&calls, r, &bodies)
	}
	page.Write(calls.Bytes())
	page.WriteString("\n## Problems\n\nAn error is `application/problem+json` (RFC 9457), a " + bodies.link(reflect.TypeFor[wire.Problem]()) +
		" with one of these codes, or with that of a\n[refusal](refusals.md).\n\n| code | status | meaning |\n|---|---:|---|\n")
	for _, c := range api.Codes {
		fmt.Fprintf(&page, "| `%s` | %d | %s |\n", c.Code, c.Status, c.Meaning)
	}
	page.WriteString("\n## Types\n")
	for done := 0; done < len(bodies.found); { // adding one may find more
		done++
		bodies.add(&page, bodies.found[done-1])
	}
	return page.String()
}

func rightsOf(r api.Route) string {
	switch {
	case r.Open:
		return "none, and no token"
	case len(r.Rights) == 0:
		return "any"
	}
	names := make([]string, len(r.Rights))
	for i, v := range r.Rights {
		names[i] = "`" + string(v) + "`"
	}
	return strings.Join(names, " or ")
}

func addCall(page *bytes.Buffer, r api.Route, bodies *types) {
	fmt.Fprintf(page, "\n### %s %s\n\n| | |\n|---|---|\n", r.Method, r.Path)
	for _, p := range r.Headers {
		fmt.Fprintf(page, "| header `%s`%s | %s |\n", p.Name, map[bool]string{true: ", required"}[p.Required], p.Meaning)
	}
	for _, p := range r.Query {
		fmt.Fprintf(page, "| query `%s`%s | %s |\n", p.Name, map[bool]string{true: ", required"}[p.Required], p.Meaning)
	}
	if r.Request != nil {
		fmt.Fprintf(page, "| request | %s |\n", bodies.link(reflect.TypeOf(r.Request)))
	}
	answer := "JSON"
	switch {
	case r.Answer != nil:
		answer = bodies.link(reflect.TypeOf(r.Answer))
	case slices.Contains(r.Status, http.StatusNoContent):
		answer = "no body"
	case slices.Contains(r.Rights, access.Metrics):
		answer = "text"
	}
	for _, status := range r.Status {
		fmt.Fprintf(page, "| %d | %s |\n", status, answer)
	}
	codes := append(r.CommonCodes(), r.Codes...)
	slices.SortStableFunc(codes, func(a, b string) int { return cmp.Compare(api.StatusOf(a), api.StatusOf(b)) })
	for i, code := range codes {
		codes[i] = fmt.Sprintf("%d `%s`", api.StatusOf(code), code)
	}
	if len(codes) > 0 {
		fmt.Fprintf(page, "| problems | %s |\n", strings.Join(codes, ", "))
	}
}

// types are the bodies found so far, in order.
type types struct {
	docs  map[string]string
	found []reflect.Type
}

func (b *types) link(body reflect.Type) string {
	if !slices.Contains(b.found, body) {
		b.found = append(b.found, body)
	}
	return fmt.Sprintf("[%s](#%s)", body.Name(), anchor(body.Name()))
}

func (b *types) add(page *bytes.Buffer, body reflect.Type) {
	fmt.Fprintf(page, "\n### %s\n\n%s\n\n| field | kind | |\n|---|---|---|\n", body.Name(), b.docs[body.Name()])
	for _, f := range reflect.VisibleFields(body) {
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name == "" || name == "-" {
			continue // an embedded type's fields are listed already
		}
		kind := b.kind(f.Type)
		if options == "omitempty" {
			kind = strings.TrimSuffix(kind, " or null") + ", may be absent"
		}
		owner := body
		for _, i := range f.Index[:len(f.Index)-1] {
			owner = owner.Field(i).Type
		}
		fmt.Fprintf(page, "| `%s` | %s | %s |\n", name, kind, b.docs[owner.Name()+"."+f.Name])
	}
}

func (b *types) kind(of reflect.Type) string {
	switch {
	case of == reflect.TypeFor[fence.Token](), of.Kind() == reflect.String:
		return "text"
	case of == reflect.TypeFor[time.Time]():
		return "time"
	case of == reflect.TypeFor[json.RawMessage]():
		return "JSON"
	}
	switch of.Kind() { //nolint:exhaustive // a kind that is none of these has its Go name, which a reader sees
	case reflect.Pointer:
		return b.kind(of.Elem()) + " or null"
	case reflect.Slice:
		return "list of " + b.kind(of.Elem())
	case reflect.Map:
		return "object of " + b.kind(of.Elem())
	case reflect.Bool:
		return "true or false"
	case reflect.Int, reflect.Int64, reflect.Uint64:
		return "number"
	case reflect.Struct:
		return b.link(of)
	}
	return of.String()
}

// commentsOf returns the comments of the packages' types and fields, keyed as Type and Type.Field.
func commentsOf(t *testing.T, packages ...string) map[string]string {
	t.Helper()
	found := map[string]string{}
	for _, name := range packages {
		files, err := filepath.Glob(filepath.Join("..", "..", filepath.FromSlash(name), "*.go"))
		if err != nil || len(files) == 0 {
			t.Fatal(name, err)
		}
		for _, file := range files {
			parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ParseComments)
			if err != nil {
				t.Fatal(err)
			}
			ast.Inspect(parsed, func(n ast.Node) bool {
				if decl, ok := n.(*ast.GenDecl); ok && len(decl.Specs) == 1 {
					if spec, ok := decl.Specs[0].(*ast.TypeSpec); ok {
						noteFields(found, spec, cmp.Or(decl.Doc.Text(), spec.Doc.Text()))
					}
				}
				return true
			})
		}
	}
	return found
}

func noteFields(found map[string]string, spec *ast.TypeSpec, doc string) {
	body, ok := spec.Type.(*ast.StructType)
	if !ok {
		return
	}
	found[spec.Name.Name] = strings.TrimSpace(doc)
	for _, f := range body.Fields.List {
		for _, name := range f.Names {
			comment := cmp.Or(f.Doc.Text(), f.Comment.Text())
			if rest, ok := strings.CutPrefix(comment, name.Name+" "); ok && f.Tag != nil { // Go's form of a doc comment
				inJSON, _, _ := strings.Cut(reflect.StructTag(strings.Trim(f.Tag.Value, "`")).Get("json"), ",")
				comment = "`" + inJSON + "` " + rest
			}
			found[spec.Name.Name+"."+name.Name] = strings.NewReplacer("|", `\|`, "nil:", "null:").Replace(strings.Join(strings.Fields(comment), " "))
		}
	}
}

// anchor returns the anchor of a heading, as GitHub makes it.
func anchor(heading string) string {
	var b strings.Builder
	for _, r := range strings.ToLower(heading) {
		switch {
		case r == ' ':
			b.WriteByte('-')
		case r == '-' || r == '_' || r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r > '~':
			b.WriteRune(r)
		}
	}
	return b.String()
}
