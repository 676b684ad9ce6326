package main

import (
	"bytes"
	"fmt"
	"regexp"
	"strings"
)

// book is a transcript in progress.
type book struct {
	out  bytes.Buffer
	mask *mask
}

func newBook(w *world) *book { return &book{mask: newMask(w)} }

func (b *book) text() string { return b.out.String() }

// tail returns the end of the text, for an error.
func (b *book) tail() string {
	text := b.text()
	return text[max(0, len(text)-500):]
}

// part begins a part of the transcript.
func (b *book) part(title string) {
	fmt.Fprintf(&b.out, "\n%s\n", strings.Repeat("#", 78))
	b.linef("# %s", title)
}

// linef writes a masked line.
func (b *book) linef(format string, args ...any) {
	b.out.WriteString(b.mask.of(fmt.Sprintf(format, args...)))
	b.out.WriteByte('\n')
}

// lines writes masked lines, each after the prefix.
func (b *book) lines(prefix, text string) {
	if text == "" {
		return
	}
	for line := range strings.Lines(b.mask.of(text)) {
		b.out.WriteString(strings.TrimRight(prefix+strings.TrimRight(line, "\r\n"), " ") + "\n")
	}
}

// mask replaces values that differ between runs. Equal values of a kind get equal names within one transcript.
type mask struct {
	fixed *strings.Replacer
	keep  map[string]bool // 32 hexadecimal digits that are the MD5 of sent data
	names map[string]string
	count map[string]int
}

func newMask(w *world) *mask {
	return &mask{fixed: strings.NewReplacer(w.names()...), keep: map[string]bool{}, names: map[string]string{}, count: map[string]int{}}
}

// varying are the values that are named <kind>, or <kind N> if they must be distinguished. The first group is replaced.
var varying = []struct {
	kind     string
	numbered bool
	pattern  *regexp.Regexp
}{
	{"request id", false, regexp.MustCompile(`(?i)(?:<RequestId>|<HostId>|X-(?:Amz-)?Request-Id: |X-Amz-Id-2: )([^<\n]+)`)},
	{"request id", false, regexp.MustCompile(`"request_id": ?"([^"]+)"`)},
	{"handle", true, regexp.MustCompile(`"handle": ?"([^"]+)"`)},
	{"secret", false, regexp.MustCompile(`"secret_access_key": ?"([^"]+)"`)},
	{"session token", false, regexp.MustCompile(`"session_token": ?"([^"]+)"`)},
	{"access key", true, regexp.MustCompile(`\b(ASIA[A-Z2-7]{16})\b`)},
	{"text", true, regexp.MustCompile(`\b([A-Z2-7]{26})\b`)},
	{"id", true, regexp.MustCompile(`\b([0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12})\b`)},
	{"time", false, regexp.MustCompile(`\b(\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d(?::?\d\d)?)?)`)},
	{"time", false, regexp.MustCompile(`\b(\d{8}T\d{6}Z)\b`)},
	{"date", false, regexp.MustCompile(`\b((?:Mon|Tue|Wed|Thu|Fri|Sat|Sun), \d\d [A-Z][a-z]{2} \d{4} \d\d:\d\d:\d\d GMT)`)},
	{"ms", false, regexp.MustCompile(`"(?:elapsed|valid|retry_after|left)_ms": ?(\d+)`)},
	{"ms", false, regexp.MustCompile(`"lock": ?\{[^}]*?"ttl_ms": ?(\d+)`)},
	{"ms", false, regexp.MustCompile(`"servers": ?\[\s*\{[^}]*?"ttl_ms": ?(\d+)`)},
	{"host/process", false, regexp.MustCompile(`people who inspect the resource \(default "([^"]+)"\)`)},
	{"n", false, regexp.MustCompile(`"(?:bytes_(?:from|to)_client|pid)": ?(\d+)`)},
	{"port", false, regexp.MustCompile(`127\.0\.0\.1:(\d+)`)},
	{"process", false, regexp.MustCompile(`[Pp]rocess (\d+)`)},
}

var (
	signing   = regexp.MustCompile(`<(?:StringToSign|StringToSignBytes|CanonicalRequest|CanonicalRequestBytes|SignatureProvided)>([^<]*)`)
	digits32  = regexp.MustCompile(`\b[0-9a-f]{32}\b(-\d+)?`)
	leftovers = regexp.MustCompile(`\r`)
)

// of masks a text.
func (m *mask) of(text string) string {
	text = replaceGroup(signing, text, func(string) string { return "<signing>" })
	text = leftovers.ReplaceAllString(m.fixed.Replace(text), "")
	for _, v := range varying {
		text = replaceGroup(v.pattern, text, func(value string) string {
			if !v.numbered {
				return "<" + v.kind + ">"
			}
			return m.name(v.kind, value)
		})
	}
	return digits32.ReplaceAllStringFunc(text, func(found string) string {
		if strings.Contains(found, "-") || m.keep[found] {
			return found // an ETag
		}
		return m.name("id", found)
	})
}

func (m *mask) name(kind, value string) string {
	if strings.HasPrefix(value, "<") {
		return value
	}
	key := kind + " " + value
	if m.names[key] == "" {
		m.count[kind]++
		m.names[key] = fmt.Sprintf("<%s %d>", kind, m.count[kind])
	}
	return m.names[key]
}

// replaceGroup replaces the first group of each match.
func replaceGroup(pattern *regexp.Regexp, text string, with func(string) string) string {
	var out strings.Builder
	at := 0
	for _, m := range pattern.FindAllStringSubmatchIndex(text, -1) {
		out.WriteString(text[at:m[2]])
		out.WriteString(with(text[m[2]:m[3]]))
		at = m[3]
	}
	return out.String() + text[at:]
}
