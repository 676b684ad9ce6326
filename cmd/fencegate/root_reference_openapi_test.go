package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/gateway/api"
	"github.com/fencegate/fencegate/wire"
)

// object is a JSON object whose members keep their order.
type object []member

type member struct {
	name  string
	value any
}

// MarshalJSON implements [json.Marshaler].
func (o object) MarshalJSON() ([]byte, error) {
	text := bytes.NewBufferString("{")
	for i, m := range o {
		if i > 0 {
			text.WriteByte(',')
		}
		name, err := json.Marshal(m.name)
		if err != nil {
			return nil, err
		}
		value, err := plainJSON(m.value)
		if err != nil {
			return nil, err
		}
		text.Write(append(append(name, ':'), value...))
	}
	text.WriteByte('}')
	return text.Bytes(), nil
}

// plainJSON leaves <, > and & as they are.
func plainJSON(v any) ([]byte, error) {
	var text bytes.Buffer
	enc := json.NewEncoder(&text)
	enc.SetEscapeHTML(false)
	err := enc.Encode(v)
	return bytes.TrimSpace(text.Bytes()), err
}

// openAPIDocument renders gateway/api/openapi.json: the routes of
// gateway/api, and the types of wire with their comments.
func openAPIDocument(t *testing.T) string {
	t.Helper()
	s := &schemas{docs: commentsOf(t, "wire", "fence")}
	var paths, problems object
	for _, r := range api.Routes() {
		if len(paths) == 0 || paths[len(paths)-1].name != r.Path {
			paths = append(paths, member{r.Path, object{}})
		}
		last := &paths[len(paths)-1]
		methods, _ := last.value.(object)
		methods = append(methods, member{strings.ToLower(r.Method), s.operation(r)})
		last.value = methods
	}
	problem := s.of(reflect.TypeFor[wire.Problem]())
	for _, code := range slices.Concat(codes(), refusals()) {
		problems = append(problems, member{code, object{
			{"description", meaningOf(code)},
			{"content", object{{"application/problem+json", object{{"schema", problem}}}}},
		}})
	}
	document := object{
		{"openapi", "3.1.0"},
		{"info", object{
			{"title", "fencegate"},
			{"version", "1"},
			{"summary", "Leases with fencing tokens that PostgreSQL and the object store enforce"},
			{"description", "Made by `make reference` from the routes of gateway/api and the types of wire. Ignore fields that you do not know. Fencing tokens are strings, because they may exceed what a double holds. A field whose name ends in _ms is in milliseconds."},
			{"license", object{{"name", "Apache-2.0"}, {"identifier", "Apache-2.0"}}},
		}},
		{"security", []object{{{"bearer", []string{}}}}},
		{"paths", paths},
		{"components", object{
			{"securitySchemes", object{{"bearer", object{
				{"type", "http"},
				{"scheme", "bearer"},
				{"description", "required if the gateway has a token: always off loopback"},
			}}}},
			{"responses", problems},
			{"schemas", s.all()},
		}},
	}
	text, err := plainJSON(document)
	if err != nil {
		t.Fatal(err)
	}
	var lines bytes.Buffer
	if err := json.Indent(&lines, text, "", " "); err != nil {
		t.Fatal(err)
	}
	return lines.String() + "\n"
}

func codes() (all []string) {
	for _, c := range api.Codes {
		all = append(all, c.Code)
	}
	return all
}

func refusals() (all []string) {
	for _, c := range fence.Codes {
		all = append(all, c.SQLState)
	}
	return all
}

func meaningOf(code string) string {
	for _, c := range api.Codes {
		if c.Code == code {
			return "`" + code + "`: " + c.Meaning
		}
	}
	for _, c := range fence.Codes {
		if c.SQLState == code {
			return "`" + code + "`: " + c.Err.Error() + ". " + c.Hint
		}
	}
	return code
}

var (
	inBraces = regexp.MustCompile(`\{(\w+)\}`)
	linked   = regexp.MustCompile(`\[([^]]*)\]\([^)]*\)`)
	atFirst  = regexp.MustCompile(`; |\. |: `)
)

// operation describes a call. Its summary is the first sentence of the description.
func (s *schemas) operation(r api.Route) object {
	does := linked.ReplaceAllString(r.Does, "$1")
	summary := strings.ReplaceAll(atFirst.Split(does, 2)[0], "`", "")
	o := object{{"operationId", r.ID}, {"summary", strings.ToUpper(summary[:1]) + summary[1:]}}
	if len(summary) < len(strings.ReplaceAll(does, "`", "")) {
		o = append(o, member{"description", strings.ToUpper(does[:1]) + does[1:]})
	}
	if r.Open {
		o = append(o, member{"security", []object{}})
	}
	if p := parameters(r); len(p) > 0 {
		o = append(o, member{"parameters", p})
	}
	if r.Request != nil {
		body := reflect.TypeOf(r.Request)
		s.requests = append(s.requests, body)
		o = append(o, member{"requestBody", object{{"required", true}, {"content", content("", s.of(body))}}})
	}
	return append(o, member{"responses", s.responses(r)})
}

func parameters(r api.Route) (all []object) {
	for _, name := range inBraces.FindAllStringSubmatch(r.Path, -1) {
		p := object{{"name", name[1]}, {"in", "path"}, {"required", true}}
		if name[1] == "resource" {
			p = append(p, member{"description", "percent-encoded; a slash may stand as it is"})
		}
		all = append(all, append(p, member{"schema", object{{"type", "string"}}}))
	}
	for in, some := range [][]api.Parameter{r.Query, r.Headers} {
		for _, p := range some {
			one := object{{"name", p.Name}, {"in", []string{"query", "header"}[in]}}
			if p.Required {
				one = append(one, member{"required", true})
			}
			all = append(all, append(one, member{"description", p.Meaning}, member{"schema", object{{"type", cmp.Or(p.Kind, "string")}}}))
		}
	}
	return all
}

func content(media string, schema object) object {
	return object{{cmp.Or(media, "application/json"), object{{"schema", schema}}}}
}

// responses describes success, and a problem for each other status: by reference if a status has a single code.
func (s *schemas) responses(r api.Route) (all object) {
	for _, status := range r.Status {
		one := object{{"description", http.StatusText(status)}}
		switch {
		case r.Answer != nil:
			one = append(one, member{"content", content(r.Media, s.of(reflect.TypeOf(r.Answer)))})
		case r.Media != "":
			one = append(one, member{"content", content(r.Media, object{{"type", "string"}})})
		case status != http.StatusNoContent:
			one = append(one, member{"content", content("", object{{"type", "object"}})})
		}
		all = append(all, member{strconv.Itoa(status), one})
	}
	byStatus := map[int][]string{}
	var statuses []int
	for _, code := range append(r.CommonCodes(), r.Codes...) {
		status := api.StatusOf(code)
		if byStatus[status] == nil {
			statuses = append(statuses, status)
		}
		if !slices.Contains(byStatus[status], code) {
			byStatus[status] = append(byStatus[status], code)
		}
	}
	slices.Sort(statuses)
	for _, status := range statuses {
		one := object{{"$ref", "#/components/responses/" + byStatus[status][0]}}
		if len(byStatus[status]) > 1 {
			meanings := make([]string, len(byStatus[status]))
			for i, code := range byStatus[status] {
				meanings[i] = "- " + meaningOf(code)
			}
			one = object{
				{"description", strings.Join(meanings, "\n")},
				{"content", content("application/problem+json", s.of(reflect.TypeFor[wire.Problem]()))},
			}
		}
		all = append(all, member{strconv.Itoa(status), one})
	}
	return all
}

// schemas are the types found so far, in order.
type schemas struct {
	docs     map[string]string
	found    []reflect.Type
	requests []reflect.Type // their unknown fields are refused
}

// of returns the schema of a type: a reference if it has fields.
func (s *schemas) of(of reflect.Type) object {
	switch of {
	case reflect.TypeFor[fence.Token]():
		return object{{"type", "string"}, {"pattern", "^(0|[1-9][0-9]{0,18})$"}}
	case reflect.TypeFor[time.Time]():
		return object{{"type", "string"}, {"format", "date-time"}}
	case reflect.TypeFor[json.RawMessage]():
		return object{}
	}
	switch of.Kind() { //nolint:exhaustive // panics at one that the API does not have yet
	case reflect.Pointer:
		one := s.of(of.Elem())
		if one[0].name == "$ref" {
			return object{{"oneOf", []object{one, {{"type", "null"}}}}}
		}
		return append(object{{"type", []any{one[0].value, "null"}}}, one[1:]...)
	case reflect.Slice:
		return object{{"type", "array"}, {"items", s.of(of.Elem())}}
	case reflect.Map:
		return object{{"type", "object"}, {"additionalProperties", s.of(of.Elem())}}
	case reflect.String:
		return object{{"type", "string"}}
	case reflect.Bool:
		return object{{"type", "boolean"}}
	case reflect.Int, reflect.Int64, reflect.Uint64:
		return object{{"type", "integer"}}
	case reflect.Struct:
		if !slices.Contains(s.found, of) {
			s.found = append(s.found, of)
		}
		return object{{"$ref", "#/components/schemas/" + of.Name()}}
	}
	panic(fmt.Sprintf("no schema for %v", of))
}

func (s *schemas) all() (all object) {
	for done := 0; done < len(s.found); { // describing one may find more
		body := s.found[done]
		done++
		all = append(all, member{body.Name(), s.describe(body)})
	}
	return all
}

func (s *schemas) describe(body reflect.Type) object {
	var required []string
	var fields object
	for _, f := range reflect.VisibleFields(body) {
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name == "" || name == "-" {
			continue // an embedded type's fields are listed already
		}
		kind := f.Type
		if options == "omitempty" && kind.Kind() == reflect.Pointer {
			kind = kind.Elem()
		} else if options != "omitempty" {
			required = append(required, name)
		}
		owner := body
		for _, i := range f.Index[:len(f.Index)-1] {
			owner = owner.Field(i).Type
		}
		schema := s.of(kind)
		if text := s.docs[owner.Name()+"."+f.Name]; text != "" {
			schema = append(schema, member{"description", strings.ReplaceAll(text, `\|`, "|")})
		}
		fields = append(fields, member{name, schema})
	}
	o := object{{"type", "object"}}
	if text := strings.Join(strings.Fields(s.docs[body.Name()]), " "); text != "" {
		o = append(o, member{"description", text})
	}
	if len(required) > 0 {
		o = append(o, member{"required", required})
	}
	o = append(o, member{"properties", fields})
	if slices.Contains(s.requests, body) {
		o = append(o, member{"additionalProperties", false})
	}
	return o
}
