package fence

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// MaxResourceBytes is the greatest length of a resource name, in bytes of UTF-8.
const MaxResourceBytes = 512

// ValidateResource reports whether name is a valid resource name: valid UTF-8, 1 to [MaxResourceBytes] bytes, without
// control characters and '*' (reserved for patterns). A name that reads as a sealed token, "34.<seal>", is invalid
// too: logs and errors show names, so a caller that swaps two arguments would reveal the seal. The error is an
// [*InvalidError] that does not repeat the name.
func ValidateResource(name string) error {
	switch {
	case name == "":
		return &InvalidError{Field: "resource", Reason: "is empty"}
	case len(name) > MaxResourceBytes:
		return &InvalidError{Field: "resource", Reason: fmt.Sprintf("is %d bytes long; at most %d are allowed", len(name), MaxResourceBytes)}
	case !utf8.ValidString(name):
		return &InvalidError{Field: "resource", Reason: "is not valid UTF-8"}
	case readsAsSealed(name):
		return &InvalidError{Field: "resource", Reason: "reads as a token with its seal: the resource comes first, then the token"}
	}
	for _, r := range name {
		if unicode.IsControl(r) {
			return &InvalidError{Field: "resource", Reason: fmt.Sprintf("contains the control character %U", r)}
		}
		if r == '*' {
			return &InvalidError{Field: "resource", Reason: "contains '*', which is kept for patterns"}
		}
	}
	return nil
}

// readsAsSealed reports whether text is digits, a dot and a seal.
func readsAsSealed(text string) bool {
	number, seal, dotted := strings.Cut(text, ".")
	return dotted && number != "" && strings.Trim(number, "0123456789") == "" && len(seal) == 2*sealBytes && isLowerHex(seal)
}

const upperHex = "0123456789ABCDEF"

// EscapeResource percent-encodes a resource name for HTTP headers, URL path segments below a prefix, and PostgreSQL
// startup options. Letters, digits and "-._~/:@" stay as they are, so ordinary names are unchanged.
func EscapeResource(name string) string {
	plain := true
	for i := range len(name) {
		plain = plain && staysPlain(name[i])
	}
	if plain {
		return name
	}
	var b strings.Builder
	for i := range len(name) {
		if c := name[i]; staysPlain(c) {
			b.WriteByte(c)
		} else {
			b.WriteByte('%')
			b.WriteByte(upperHex[c>>4])
			b.WriteByte(upperHex[c&15])
		}
	}
	return b.String()
}

func staysPlain(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || strings.IndexByte("-._~/:@", c) >= 0
}

// UnescapeResource undoes [EscapeResource] and validates the result. It also accepts names in which more characters
// are encoded. A '%' that does not start two hexadecimal digits is an [*InvalidError].
func UnescapeResource(escaped string) (string, error) {
	name := escaped
	if strings.IndexByte(escaped, '%') >= 0 {
		var b strings.Builder
		for i := 0; i < len(escaped); i++ {
			if escaped[i] != '%' {
				b.WriteByte(escaped[i])
				continue
			}
			if i+2 >= len(escaped) {
				return "", &InvalidError{Field: "resource", Reason: "ends inside a percent-encoding"}
			}
			hi, lo := unhex(escaped[i+1]), unhex(escaped[i+2])
			if hi < 0 || lo < 0 {
				return "", &InvalidError{Field: "resource", Reason: "contains '%' that is not followed by two hexadecimal digits"}
			}
			b.WriteByte(byte(hi<<4 | lo))
			i += 2
		}
		name = b.String()
	}
	if err := ValidateResource(name); err != nil {
		return "", err
	}
	return name, nil
}

func unhex(c byte) int {
	switch {
	case '0' <= c && c <= '9':
		return int(c - '0')
	case 'a' <= c && c <= 'f':
		return int(c-'a') + 10
	case 'A' <= c && c <= 'F':
		return int(c-'A') + 10
	}
	return -1
}
