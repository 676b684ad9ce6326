package fence_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/fencegate/fencegate/fence"
)

func TestValidateResource(t *testing.T) {
	t.Parallel()
	for name, resource := range map[string]string{
		"plain": "orders/1001", "one byte": "x", "unicode": "aufträge/größe", "spaces": "a b", "longest": strings.Repeat("a", 512), "percent": "50%",
		"a hash": strings.Repeat("5e", 16), "a number and a hash in a path": "thumbs/34." + strings.Repeat("5e", 16), "no number before a hash": "a." + strings.Repeat("5e", 16),
		"a number and a longer hash": "34." + strings.Repeat("5e", 20), "a number and no hash": "34." + strings.Repeat("xy", 16), "a file's name": "." + strings.Repeat("5e", 16),
	} {
		if err := fence.ValidateResource(resource); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, resource := range map[string]string{
		"empty": "", "too long": strings.Repeat("a", 513), "too long in bytes": strings.Repeat("ä", 257),
		"newline": "a\nb", "NUL": "a\x00", "DEL": "a\x7f", "C1 control": "a\u0085", "invalid UTF-8": "a\xff", "star": "orders/*",
		"a token with its seal": "34." + strings.Repeat("5e", 16), "a seal without its token": "0." + strings.Repeat("5e", 16),
	} {
		err := fence.ValidateResource(resource)
		var invalid *fence.InvalidError
		if !errors.As(err, &invalid) || invalid.Field != "resource" || !errors.Is(err, fence.ErrInvalid) || strings.Contains(err.Error(), "5e5e") {
			t.Errorf("%s: got %v, want an InvalidError on the resource that does not repeat it", name, err)
		}
	}
}

func TestEscapeKeepsOrdinaryNamesReadable(t *testing.T) {
	t.Parallel()
	for plain, want := range map[string]string{
		"orders/1001": "orders/1001",
		"a b":         "a%20b",
		"50%":         "50%25",
		"a\\b'c":      "a%5Cb%27c",
		"ä":           "%C3%A4",
	} {
		if got := fence.EscapeResource(plain); got != want {
			t.Errorf("EscapeResource(%q) = %q, want %q", plain, got, want)
		}
	}
}

func TestUnescapeRefusesMalformedEncodings(t *testing.T) {
	t.Parallel()
	for _, escaped := range []string{"", "%", "a%2", "a%zz", "%00", "%ff", "a%2A"} {
		if got, err := fence.UnescapeResource(escaped); !errors.Is(err, fence.ErrInvalid) {
			t.Errorf("UnescapeResource(%q) = %q, %v; want an error", escaped, got, err)
		}
	}
}

func FuzzEscapeRoundTrip(f *testing.F) {
	for _, s := range []string{"orders/1001", "a b%", "ä\u00a0", "%41"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if fence.ValidateResource(s) != nil {
			return
		}
		escaped := fence.EscapeResource(s)
		if strings.ContainsAny(escaped, " \\'\"\t;") {
			t.Fatalf("EscapeResource(%q) = %q: not safe in startup options", s, escaped)
		}
		back, err := fence.UnescapeResource(escaped)
		if err != nil || back != s {
			t.Fatalf("%q came back as %q, %v", s, back, err)
		}
	})
}
