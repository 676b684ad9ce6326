package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"
)

// transcript is a text in progress.
type transcript struct {
	mask  *mask
	step  string   // that writes
	lines []string // each with its end
	steps []string // that wrote them
}

func newTranscript(w *world) *transcript {
	return &transcript{mask: &mask{fixed: strings.NewReplacer(w.names()...), keep: map[string]bool{}, names: map[string]string{}, count: map[string]int{}}}
}

func (t *transcript) String() string { return strings.Join(t.lines, "") }

func (t *transcript) write(text string) {
	for line := range strings.Lines(text) {
		t.lines, t.steps = append(t.lines, line), append(t.steps, t.step)
	}
}

// part begins a part.
func (t *transcript) part(title string) {
	t.write("\n" + strings.Repeat("#", 78) + "\n")
	t.linef("# %s", title)
}

// linef writes a masked line.
func (t *transcript) linef(format string, args ...any) {
	t.write(t.mask.of(fmt.Sprintf(format, args...)) + "\n")
}

// prefixed writes masked lines, each after the prefix.
func (t *transcript) prefixed(prefix, text string) {
	for line := range strings.Lines(t.mask.of(text)) {
		t.write(strings.TrimRight(prefix+strings.TrimRight(line, "\r\n"), " ") + "\n")
	}
}

// sent writes a body that was sent.
func (t *transcript) sent(body string) {
	if len(body) > 1000 || !utf8.ValidString(body) {
		body = summary(body)
	}
	t.prefixed("> ", readable(body))
}

// answer writes a reply.
func (t *transcript) answer(r *reply) {
	if long(r.body) {
		t.mask.keep[md5Of(r.body)] = true
	}
	masked := t.mask.of(r.body)
	for _, line := range r.head {
		if masked != r.body && strings.HasPrefix(strings.ToLower(line), "content-length:") {
			line = "Content-Length: <n>" // its length depends on masked values
		}
		t.prefixed("< ", line)
	}
	t.prefixed("", readable(r.body))
	t.write("\n")
}

const longBody = 1 << 14

// long reports that a body is recorded by its size and checksum.
func long(body string) bool { return len(body) > longBody || !utf8.ValidString(body) }

func summary(body string) string { return fmt.Sprintf("(%d bytes, MD5 %s)", len(body), md5Of(body)) }

// isSpecification matches /openapi.json. It changes with every route and type, and the reference's test compares it with
// both.
var isSpecification = regexp.MustCompile(`^\{\s*"openapi"`)

// readable splits a body into lines, so that a diff shows what changed.
func readable(body string) string {
	switch {
	case isSpecification.MatchString(body):
		return "(the API's specification)"
	case long(body):
		return summary(body)
	case strings.HasPrefix(body, "<") && strings.HasSuffix(strings.TrimSpace(body), ">"):
		return strings.ReplaceAll(body, "><", ">\n<")
	case strings.HasPrefix(body, "{") || strings.HasPrefix(body, "["):
		var out bytes.Buffer
		if json.Indent(&out, []byte(body), "", " ") == nil {
			return out.String()
		}
	}
	return body
}

var hunk = regexp.MustCompile(`^@@ -\d+(?:,\d+)? \+(\d+)`)

// compare returns how the transcript differs from a file: a unified diff, in which each change is headed by its step.
func (t *transcript) compare(path string) (string, error) {
	diff := exec.Command("diff", "-u", "-N", "--label", path, "--label", "now", path, "-")
	diff.Stdin = strings.NewReader(t.String())
	out, err := diff.Output()
	if _, differs := errors.AsType[*exec.ExitError](err); err != nil && (!differs || len(out) == 0) {
		return "", fmt.Errorf("diff: %w", err)
	}
	var annotated strings.Builder
	line, step := 0, ""
	for text := range strings.Lines(string(out)) {
		if m := hunk.FindStringSubmatch(text); m != nil {
			line, _ = strconv.Atoi(m[1])
		} else if line > 0 {
			if by := t.steps[min(line, len(t.steps))-1]; text[0] != ' ' && by != step {
				step = by
				annotated.WriteString("@@ " + step + "\n")
			}
			if text[0] != '-' {
				line++
			}
		}
		annotated.WriteString(text)
	}
	return annotated.String(), nil
}

// mask replaces values that differ between runs. Equal values of a kind get equal names within one transcript.
type mask struct {
	fixed *strings.Replacer
	keep  map[string]bool // 32 hexadecimal digits that are the MD5 of sent data
	names map[string]string
	count map[string]int
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
	{"version", false, regexp.MustCompile(`server_version=(.+)`)},
	{"port", false, regexp.MustCompile(`127\.0\.0\.1:(\d+)`)},
	{"process", false, regexp.MustCompile(`[Pp]rocess (\d+)`)},
}

var (
	signing  = regexp.MustCompile(`<(?:StringToSign|StringToSignBytes|CanonicalRequest|CanonicalRequestBytes|SignatureProvided)>([^<]*)`)
	digits32 = regexp.MustCompile(`\b[0-9a-f]{32}\b(-\d+)?`)
)

// of masks a text.
func (m *mask) of(text string) string {
	text = replaceGroup(signing, text, func(string) string { return "<signing>" })
	text = strings.ReplaceAll(m.fixed.Replace(text), "\r", "")
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
