package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/labstack/echo/v4"

	"github.com/fencegate/fencegate/fence"
)

const maxBodyBytes = 1 << 20

// decode reads the request's body into v: exactly one JSON value, without
// unknown fields, in UTF-8.
func decode(c echo.Context, v any) error {
	req := c.Request()
	// The JSON type is required because a browser cannot send it to another site without a preflight request.
	if kind := req.Header.Get(echo.HeaderContentType); kind != echo.MIMEApplicationJSON {
		if kind, _, err := mime.ParseMediaType(kind); err != nil || kind != echo.MIMEApplicationJSON {
			return &fence.InvalidError{Field: "Content-Type", Reason: "is not application/json"}
		}
	}
	body, err := io.ReadAll(http.MaxBytesReader(c.Response(), req.Body, maxBodyBytes))
	if err == nil { // the handler may wait for a lease
		_ = http.NewResponseController(c.Response()).SetReadDeadline(time.Time{})
	}
	var over *http.MaxBytesError
	switch {
	case errors.As(err, &over):
		return &TooLargeError{What: "the body", Limit: maxBodyBytes}
	case err != nil:
		return &fence.InvalidError{Field: "body", Reason: "could not be read to its end"}
	case !utf8.Valid(body):
		return &fence.InvalidError{Field: "body", Reason: "is not valid UTF-8"}
	case loneSurrogate(body):
		// The decoder would replace it with U+FFFD, which is another name.
		return &fence.InvalidError{Field: "body", Reason: `has half of a surrogate pair (\ud800 to \udfff), which is no character`}
	}
	dec := json.NewDecoder(bytes.NewReader(body))
	dec.DisallowUnknownFields()
	if err := dec.Decode(v); err != nil {
		return &fence.InvalidError{Field: "body", Reason: describe(err)}
	}
	if string(bytes.Trim(body, whitespace)) == "null" { // the decoder takes null for an object without fields
		return &fence.InvalidError{Field: "body", Reason: "is a JSON null; an object is expected"}
	}
	if len(bytes.TrimLeft(body[dec.InputOffset():], whitespace)) > 0 {
		return &fence.InvalidError{Field: "body", Reason: "has data after its JSON value"}
	}
	if name := repeatedField(body); name != "" {
		return &fence.InvalidError{Field: "body", Reason: fmt.Sprintf("has the field %q twice", name)}
	}
	return nil
}

// describe says what is wrong with the JSON, without its values, which may be secrets.
func describe(err error) string {
	var (
		syntax *json.SyntaxError
		kind   *json.UnmarshalTypeError
	)
	switch {
	case errors.Is(err, io.EOF):
		return "is empty; a JSON object is expected"
	case errors.Is(err, io.ErrUnexpectedEOF):
		return "ends inside its JSON value"
	case errors.As(err, &syntax):
		return fmt.Sprintf("is not JSON: error at byte %d", syntax.Offset)
	case errors.As(err, &kind) && kind.Field == "":
		return fmt.Sprintf("is a JSON %s; an object is expected", kind.Value)
	case errors.As(err, &kind):
		return fmt.Sprintf("has a %s where %q needs %s", kind.Value, kind.Field, jsonType(kind.Type))
	}
	if _, field, ok := strings.Cut(err.Error(), "unknown field "); ok {
		return "has the unknown field " + field
	}
	return "is not what this path takes"
}

// jsonType returns the JSON name of a Go type.
func jsonType(t reflect.Type) string {
	switch t.Kind() {
	case reflect.String:
		return "a string"
	case reflect.Bool:
		return "true or false"
	case reflect.Int, reflect.Int32, reflect.Int64, reflect.Uint, reflect.Uint32, reflect.Uint64, reflect.Float64:
		return "a number in its range"
	case reflect.Slice, reflect.Array:
		return "a list"
	case reflect.Struct, reflect.Map:
		return "an object"
	case reflect.Pointer:
		return jsonType(t.Elem())
	}
	return "another type"
}

// loneSurrogate reports whether a string of the JSON text has an escape for
// half of a surrogate pair without the other half.
func loneSurrogate(text []byte) bool {
	for {
		at := bytes.IndexByte(text, '\\') // in valid JSON only strings contain it
		if at < 0 {
			return false
		}
		first := escapedUnit(text[at:])
		text = text[min(len(text), at+2):]
		if !utf16.IsSurrogate(first) {
			continue
		}
		text = text[4:]
		if utf16.DecodeRune(first, escapedUnit(text)) == unicode.ReplacementChar {
			return true
		}
		text = text[6:]
	}
}

// escapedUnit parses \uXXXX at the beginning of text; -1 if there is none.
func escapedUnit(text []byte) rune {
	if len(text) < 6 || text[0] != '\\' || text[1] != 'u' {
		return -1
	}
	unit, err := strconv.ParseUint(string(text[2:6]), 16, 16)
	if err != nil {
		return -1
	}
	return rune(unit)
}

const (
	// fieldDepth is the greatest depth of a body's fields: those of a statement, in a list, in an object. Anything
	// deeper is a value of the client's.
	fieldDepth = 3

	whitespace = " \t\r\n" // JSON's
)

// repeatedField returns a field that an object of the text has twice; "" if none. JSON parsers differ in which of the
// two they take, and the decoder even mixes them: a second list of statements inherits arguments of the first. The
// decoder has already found that the text is one JSON value.
func repeatedField(text []byte) string {
	var few [fieldDepth][8]string
	var fields [fieldDepth][]string // of the enclosing objects, the outermost first
	depth := 0
	for i := 0; i < len(text); i++ {
		switch text[i] {
		case '{', '[':
			if depth < fieldDepth {
				fields[depth] = few[depth][:0] //nolint:gosec // depth is below fieldDepth
			}
			depth++
		case '}', ']':
			depth--
		case '"':
			end := closing(text, i)
			if depth <= fieldDepth && bytes.HasPrefix(bytes.TrimLeft(text[end:], whitespace), []byte{':'}) {
				name := unquoted(text[i:end])
				if slices.ContainsFunc(fields[depth-1], func(other string) bool { return strings.EqualFold(name, other) }) { //nolint:gosec // as the decoder compares; a name is inside of an object
					return name
				}
				fields[depth-1] = append(fields[depth-1], name) //nolint:gosec // likewise
			}
			i = end - 1
		}
	}
	return ""
}

// closing returns the end of the string that begins at i.
func closing(text []byte, i int) int {
	for i++; text[i] != '"'; i++ {
		if text[i] == '\\' {
			i++
		}
	}
	return i + 1
}

// unquoted returns the value of a JSON string.
func unquoted(text []byte) (name string) {
	if bytes.IndexByte(text, '\\') < 0 {
		return string(text[1 : len(text)-1])
	}
	_ = json.Unmarshal(text, &name) // it is a valid string
	return name
}

// pathParam returns a parameter of the path, unescaped. The router works on the escaped path if that is not the usual
// form of the plain one, as with an encoded slash, and does not unescape its parameters.
func pathParam(c echo.Context, name string) string {
	text := c.Param(name)
	if c.Request().URL.RawPath == "" {
		return text
	}
	if plain, err := url.PathUnescape(text); err == nil { // net/http has refused malformed escapes
		return plain
	}
	return text
}

// storable refuses names that PostgreSQL cannot store or look up, and names longer than S3 allows.
func storable(field, text string) error {
	const longest = 1024
	switch {
	case !utf8.ValidString(text):
		return &fence.InvalidError{Field: field, Reason: "is not valid UTF-8"}
	case strings.ContainsRune(text, 0):
		return &fence.InvalidError{Field: field, Reason: "contains the control character U+0000"}
	case len(text) > longest:
		return &fence.InvalidError{Field: field, Reason: fmt.Sprintf("is %d bytes long; at most %d are allowed", len(text), longest)}
	}
	return nil
}

// queryOf parses the query's parameters; each must be known and appear once. A malformed pair is an error: ignoring it
// would answer another question.
func queryOf(c echo.Context, known ...string) (url.Values, error) {
	query, err := url.ParseQuery(c.Request().URL.RawQuery)
	if err != nil {
		return nil, &fence.InvalidError{Field: "query", Reason: "is malformed: its percent-encoding, or a ';'"}
	}
	for name, values := range query {
		if !slices.Contains(known, name) {
			return nil, &fence.InvalidError{Field: "query", Reason: "has the unknown parameter " + strconv.Quote(name)}
		}
		if len(values) != 1 {
			return nil, &fence.InvalidError{Field: name, Reason: "is given more than once"}
		}
	}
	return query, nil
}

// duration parses an optional duration such as "30s"; fallback if absent.
func duration(field string, text *string, fallback time.Duration) (time.Duration, error) {
	if text == nil {
		return fallback, nil
	}
	d, err := time.ParseDuration(*text)
	if err != nil {
		return 0, &fence.InvalidError{Field: field, Reason: `is not a duration such as "30s"`}
	}
	return d, nil
}

const (
	defaultPage = 100
	maxPage     = 1000
)

// limitIn returns how many entries a page may have.
func limitIn(query url.Values) (int, error) {
	if !query.Has("limit") {
		return defaultPage, nil
	}
	limit, err := strconv.Atoi(query.Get("limit"))
	if err != nil || limit < 1 || limit > maxPage {
		return 0, &fence.InvalidError{Field: "limit", Reason: fmt.Sprintf("is not a number from 1 to %d", maxPage)}
	}
	return limit, nil
}
