package api

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"testing"
)

// repeatedByTokens computes the same from the decoder's own tokens.
func repeatedByTokens(dec *json.Decoder, depth int) string {
	open, _ := dec.Token()
	if open != json.Delim('{') && open != json.Delim('[') {
		return ""
	}
	var names []string
	for dec.More() {
		if open == json.Delim('{') {
			key, _ := dec.Token()
			name, _ := key.(string)
			if slices.ContainsFunc(names, func(other string) bool { return strings.EqualFold(name, other) }) {
				return name
			}
			names = append(names, name)
		}
		if depth == 1 {
			var value json.RawMessage
			_ = dec.Decode(&value)
		} else if name := repeatedByTokens(dec, depth-1); name != "" {
			return name
		}
	}
	_, _ = dec.Token()
	return ""
}

// repeated finds a field exactly if the decoder's tokens contain it twice.
func FuzzRepeated(f *testing.F) {
	for _, text := range []string{
		`{}`, `[]`, `"a"`, `1`, `{"a":1,"a":2}`, `{"a":1,"A":2}`, `{"a":{"a":1},"b":[{"a":1},{"a":2}]}`, `{"a":[{"x":1,"x":2}]}`, ` { "a" : 1 , "\u0061" : 2 } `,
		`{"a":"\"a\":","b":"}{]["}`, `{"a":{"b":{"c":1,"c":2}}}`, `{"a":{"b":{"c":{"d":1,"d":2}}}}`, `{"s":["a","a"],"\\":1,"\\":2}`, `{"K":1,"\u212a":2}`, `{"":1,"":2}`,
		`{"a":1,"b":2,"c":3,"d":4,"e":5,"f":6,"g":7,"h":8,"i":9,"j":10,"a":11}`,
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if !json.Valid([]byte(text)) {
			return
		}
		if got, want := repeatedField([]byte(text)), repeatedByTokens(json.NewDecoder(bytes.NewReader([]byte(text))), fieldDepth); got != want {
			t.Errorf("%s: %q, want %q", text, got, want)
		}
	})
}
