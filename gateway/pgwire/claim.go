package pgwire

import (
	"strings"

	"github.com/fencegate/fencegate/fence"
)

// claim is a grant in a session's startup options, without its seal. The relay uses it only to end or refuse the
// session, never to permit anything.
type claim struct {
	resource string
	token    fence.Token // 0: not known yet, if the seal came without it
}

// claims are the grants of one session. The session's mu guards their tokens.
type claims []claim

// only returns the only grant of a session; none if there are several.
func (all claims) only() claim {
	if len(all) == 1 {
		return all[0]
	}
	return claim{}
}

// resources returns the resources of the grants.
func (all claims) resources() (names []string) {
	for _, c := range all {
		names = append(names, c.resource)
	}
	return names
}

// tokenOf returns the token of the grant for a resource; 0: not known.
func (all claims) tokenOf(resource string) fence.Token {
	for _, c := range all {
		if c.resource == resource {
			return c.token
		}
	}
	return 0
}

// learn sets the token of the only grant if it was presented without it.
func (all claims) learn(token fence.Token) {
	if len(all) == 1 && all[0].token == 0 {
		all[0].token = token
	}
}

// compare returns the first grant that a recorded token supersedes; nil: none. It learns tokens that are not known yet.
func (all claims) compare(recorded map[string]fence.Token) (stale *fence.StaleError) {
	for i := range all {
		c := &all[i]
		switch token, known := recorded[c.resource]; {
		case !known:
		case c.token == 0: // a seal without its token: any higher token from now on is newer
			c.token = token
		case c.token < token && stale == nil:
			stale = &fence.StaleError{Resource: c.resource, Presented: c.token, Recorded: token}
		}
	}
	return stale
}

// settings are the fence's settings in a StartupMessage. PostgreSQL applies the command line in options before the
// others.
type settings struct {
	fromOptions, fromMessage fenceSettings
}

type fenceSettings struct {
	resource, token, grants string

	unknown     string // a setting of the fence's that does not exist
	application string
}

const settingApplication = "application_name"

func (f *fenceSettings) assign(name, value string) {
	switch name = strings.ToLower(name); name { // settings' names are case-insensitive
	case "fence.resource":
		f.resource = value
	case "fence.token":
		f.token = value
	case "fence.grants":
		f.grants = value
	case settingApplication:
		f.application = value
	default:
		if strings.HasPrefix(name, "fence.") {
			f.unknown = name
		}
	}
}

// options parses "-c name=value", "-cname=value" and "--name=value" as PostgreSQL does.
func (s *settings) options(text string) {
	words := splitOptions(text)
	for i := 0; i < len(words); i++ {
		setting, ok := strings.CutPrefix(unescapeOption(words[i]), "--")
		if !ok {
			if setting, ok = strings.CutPrefix(unescapeOption(words[i]), "-c"); ok && setting == "" && i+1 < len(words) {
				i++
				setting = unescapeOption(words[i])
			}
		}
		if ok {
			name, value, _ := strings.Cut(setting, "=")
			s.fromOptions.assign(name, value)
		}
	}
}

// splitOptions splits at white space; a backslash escapes the next byte. The words keep their backslashes.
func splitOptions(text string) (words []string) {
	start := -1
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case strings.IndexByte(" \t\n\v\f\r", c) >= 0:
			if start >= 0 {
				words = append(words, text[start:i])
				start = -1
			}
		case start < 0:
			start = i
			fallthrough
		default:
			if c == '\\' {
				i++
			}
		}
	}
	if start >= 0 {
		words = append(words, text[start:])
	}
	return words
}

func unescapeOption(word string) string {
	if strings.IndexByte(word, '\\') < 0 {
		return word
	}
	var b strings.Builder
	for i := 0; i < len(word); i++ {
		if word[i] == '\\' && i+1 < len(word) {
			i++
		}
		b.WriteByte(word[i])
	}
	return b.String()
}

// effective returns the settings that PostgreSQL will have.
func (s *settings) effective() fenceSettings {
	all := s.fromOptions
	for _, f := range []struct{ into, from *string }{
		{&all.resource, &s.fromMessage.resource},
		{&all.token, &s.fromMessage.token},
		{&all.grants, &s.fromMessage.grants},
		{&all.unknown, &s.fromMessage.unknown},
		{&all.application, &s.fromMessage.application},
	} {
		if *f.from != "" {
			*f.into = *f.from
		}
	}
	return all
}

// presents reports whether the options contain a grant, well-formed or not.
func (f fenceSettings) presents() bool { return f.resource != "" && f.token != "" || f.grants != "" }

// maxClaims is how many grants of a session are watched: each is compared at every look. The fence checks all.
const maxClaims = 64

// claims returns the first well-formed grants; PostgreSQL's fence reports a malformed one when it matters.
func (f fenceSettings) claims() (all claims) {
	add := func(resource, token string) {
		if c, ok := claimOf(resource, token); ok {
			all = append(all, c)
		}
	}
	add(f.resource, f.token)
	for one := range strings.SplitSeq(f.grants, ",") {
		if len(all) == maxClaims {
			break
		}
		resource, token, _ := strings.Cut(one, "=")
		add(resource, token)
	}
	return all
}

func claimOf(name, presented string) (c claim, ok bool) {
	resource, err := fence.UnescapeResource(name)
	if err != nil {
		return claim{}, false
	}
	number, _, sealed := strings.Cut(presented, ".")
	if number == "0" && sealed {
		return claim{resource: resource}, true
	}
	token, err := fence.ParseToken(number)
	return claim{resource: resource, token: token}, err == nil
}
