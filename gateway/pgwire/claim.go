package pgwire

import (
	"strings"

	"github.com/fencegate/fencegate/fence"
)

// claim is the grant that a session's startup options carry, without its seal.
// The relay believes it only to the session's disadvantage.
type claim struct {
	resource string      // "": there is none
	token    fence.Token // 0: not known yet, as where the seal came without it
}

// grantSettings are the settings of a grant in a StartupMessage. PostgreSQL
// applies those of the command line, in options, before the others.
type grantSettings struct {
	fromOptions, fromMessage struct{ resource, token string }
}

func (g *grantSettings) direct(name, value string) { assign(&g.fromMessage, name, value) }

func assign(into *struct{ resource, token string }, name, value string) {
	switch strings.ToLower(name) { // settings' names ignore case
	case "fence.resource":
		into.resource = value
	case "fence.token":
		into.token = value
	}
}

// options reads "-c name=value", "-cname=value" and "--name=value" as
// PostgreSQL does.
func (g *grantSettings) options(text string) {
	words := splitOptions(text)
	for i := 0; i < len(words); i++ {
		setting, ok := strings.CutPrefix(words[i], "--")
		if !ok {
			if setting, ok = strings.CutPrefix(words[i], "-c"); !ok {
				continue
			}
			if setting == "" && i+1 < len(words) {
				i++
				setting = words[i]
			}
		}
		name, value, _ := strings.Cut(setting, "=")
		assign(&g.fromOptions, name, value)
	}
}

// splitOptions splits at white space; a backslash takes the next byte as it is.
func splitOptions(text string) (words []string) {
	var word strings.Builder
	inWord := false
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case strings.IndexByte(" \t\n\v\f\r", c) >= 0:
			if inWord {
				words = append(words, word.String())
				word.Reset()
				inWord = false
			}
		default:
			if c == '\\' && i+1 < len(text) {
				i++
				c = text[i]
			}
			word.WriteByte(c)
			inWord = true
		}
	}
	if inWord {
		words = append(words, word.String())
	}
	return words
}

// claim is none where the settings are malformed: PostgreSQL's fence says so
// where it matters.
func (g *grantSettings) claim() claim {
	settings := g.fromOptions
	if g.fromMessage.resource != "" {
		settings.resource = g.fromMessage.resource
	}
	if g.fromMessage.token != "" {
		settings.token = g.fromMessage.token
	}
	resource, err := fence.UnescapeResource(settings.resource)
	if err != nil {
		return claim{}
	}
	number, _, sealed := strings.Cut(settings.token, ".")
	if number == "0" && sealed {
		return claim{resource: resource}
	}
	token, err := fence.ParseToken(number)
	if err != nil {
		return claim{}
	}
	return claim{resource: resource, token: token}
}
