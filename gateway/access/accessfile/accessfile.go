// Package accessfile reads principals from a file.
//
// The guarantee: the result is exactly what the file says. Anything unknown or ambiguous is an error that names the
// line and never contains a value that may be a secret.
//
//	principals:
//	  - name: worker
//	    tokens: [6ca13d52ca70c883e0f0bb101e425a89e8624de51db2d2392593af6a84118090]
//	    allow:
//	      - resources: "orders/*"
//	        verbs: [acquire, sql]
//	  - name: nightly
//	    jwt: [{issuer: "https://idp.example", claims: {sub: nightly}}]
//	issuers:
//	  - {issuer: "https://idp.example", audience: fencegate, algorithms: RS256, keys: "https://idp.example/jwks.json"}
package accessfile

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/fencegate/fencegate/gateway/access"
	"github.com/fencegate/fencegate/gateway/access/jwt"
	"github.com/fencegate/fencegate/internal/regular"
)

// maxBytes bounds a file.
const maxBytes = 1 << 20

// ErrUnnamedToken reports that the file gives the gateway's token to no principal.
var ErrUnnamedToken = errors.New("no principal has gateway_token: true, so the token of --token-file would belong to no principal")

// File is the content of a file.
type File struct {
	Principals []access.Definition
	Issuers    []jwt.Issuer // whose tokens may identify principals
}

// Options returns the options of [access.New] that the file asks for. It reads the files that the file names.
func (f File) Options(log *slog.Logger) ([]access.Option, error) {
	if len(f.Issuers) == 0 {
		return nil, nil
	}
	v, err := jwt.New(f.Issuers, log)
	if err != nil {
		return nil, err
	}
	return []access.Option{access.VerifiedBy(v)}, nil
}

// Read reads a file. gatewayToken is the token of the principal with gateway_token; "": there is none. With
// [ErrUnnamedToken] Read also returns the content.
func Read(path, gatewayToken string) (f File, err error) {
	text, err := contents(path)
	if err == nil {
		if f, err = Parse(text, gatewayToken); err == nil {
			return f, nil
		}
	}
	return f, fmt.Errorf("%s: %w", path, err)
}

func contents(path string) ([]byte, error) {
	text, err := regular.Read(path, maxBytes)
	switch {
	case err != nil:
		return nil, errors.Unwrap(err) // without its path, which the message contains already
	case len(bytes.TrimSpace(text)) == 0:
		return nil, errors.New("is empty: it names no principals; serve without --principals lets everybody do everything")
	case !bytes.HasSuffix(text, []byte("\n")):
		return nil, errors.New("its last line has no line break: is the file complete?")
	}
	return text, nil
}

// Parse reads the text of a file, as [Read] does.
func Parse(text []byte, gatewayToken string) (File, error) {
	dec := yaml.NewDecoder(bytes.NewReader(text))
	var doc, more yaml.Node
	if err := dec.Decode(&doc); err != nil {
		return File{}, explain(err)
	}
	if err := dec.Decode(&more); !errors.Is(err, io.EOF) {
		return File{}, errors.New("has a second document, behind ---: all principals stand in one")
	}
	r := &reader{gatewayToken: gatewayToken}
	if err := r.file(doc.Content[0]); err != nil {
		return File{}, err
	}
	if err := r.known(); err != nil {
		return File{}, err
	}
	if err := access.Validate(r.all); err != nil {
		if d, ok := errors.AsType[*access.DefinitionError](err); ok {
			return File{}, &lineError{r.lines[d.Index], err}
		}
		return File{}, err
	}
	f := File{Principals: r.all, Issuers: r.issuers}
	if gatewayToken != "" && r.gateway == "" {
		return f, ErrUnnamedToken
	}
	return f, nil
}

// explain describes a YAML syntax error. The library names the line.
func explain(err error) error {
	text := strings.TrimPrefix(err.Error(), "yaml: ")
	switch {
	case errors.Is(err, io.EOF):
		return errors.New("names no principals")
	case strings.Contains(text, "expected alphabetic or numeric character") || strings.Contains(text, "unknown anchor"):
		line := ""
		if where, _, ok := strings.Cut(text, ": "); ok && strings.HasPrefix(where, "line ") {
			line = where + ": "
		}
		return errors.New(line + `a "*" without quotes begins an alias in YAML: write "*" or "orders/*" in quotes`)
	case strings.HasPrefix(text, "unmarshal errors"):
		return errors.New("is not valid YAML")
	}
	return errors.New("is not valid YAML: " + text)
}

// lineError is an error with its line.
type lineError struct {
	line int
	err  error
}

func (e *lineError) Error() string { return fmt.Sprintf("line %d: %v", e.line, e.err) }
func (e *lineError) Unwrap() error { return e.err }

func at(n *yaml.Node, format string, args ...any) error {
	return &lineError{n.Line, fmt.Errorf(format, args...)}
}
