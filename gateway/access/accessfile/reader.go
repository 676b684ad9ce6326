package accessfile

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/fencegate/fencegate/gateway/access"
	"github.com/fencegate/fencegate/gateway/access/jwt"
)

// reader walks the nodes itself: a decoder does not name the line of a value of the wrong kind, and accepts "yes" as a
// string.
type reader struct {
	gatewayToken string
	gateway      string // the principal that has it
	all          []access.Definition
	lines        []int // of each principal
	issuers      []jwt.Issuer
}

func (r *reader) file(n *yaml.Node) error {
	return fields(n, "the file", map[string]func(*yaml.Node) error{
		"principals": func(n *yaml.Node) error { return each(n, "principals", r.principal) },
		"issuers":    func(n *yaml.Node) error { return each(n, "issuers", r.issuer) },
	})
}

func (r *reader) principal(n *yaml.Node) error {
	var d access.Definition
	err := fields(n, "a principal", map[string]func(*yaml.Node) error{
		"name":   func(n *yaml.Node) error { return text(n, "name", &d.Name) },
		"tokens": func(n *yaml.Node) error { return each(n, "tokens", func(n *yaml.Node) error { return digest(n, &d) }) },
		"certificates": func(n *yaml.Node) error {
			return each(n, "certificates", func(n *yaml.Node) error {
				var name string
				err := text(n, "certificates", &name)
				d.Certificates = append(d.Certificates, name)
				return err
			})
		},
		"jwt": func(n *yaml.Node) error { return each(n, "jwt", func(n *yaml.Node) error { return claims(n, &d) }) },
		"gateway_token": func(n *yaml.Node) error {
			has, err := boolean(n, "gateway_token")
			if err != nil || !has {
				return err
			}
			return r.takeGatewayToken(n, &d)
		},
		"allow": func(n *yaml.Node) error {
			if n.Kind == yaml.SequenceNode && len(n.Content) == 0 {
				return plain(n) // it may do nothing; its token stays reserved
			}
			return each(n, "allow", func(n *yaml.Node) error { return rules(n, &d) })
		},
	})
	if r.gateway == "?" {
		r.gateway = d.Name
	}
	r.all, r.lines = append(r.all, d), append(r.lines, n.Line)
	return err
}

func (r *reader) issuer(n *yaml.Node) error {
	var i jwt.Issuer
	into := func(field string, to *string) func(*yaml.Node) error {
		return func(n *yaml.Node) error { return text(n, field, to) }
	}
	err := fields(n, "an issuer", map[string]func(*yaml.Node) error{
		"issuer": into("issuer", &i.URL), "audience": into("audience", &i.Audience),
		"keys": into("keys", &i.Keys), "keys_file": into("keys_file", &i.KeysFile), "ca": into("ca", &i.CA),
		"algorithms": func(n *yaml.Node) error {
			return oneOrEach(n, "algorithms", func(n *yaml.Node) error {
				var algorithm string
				err := text(n, "algorithms", &algorithm)
				i.Algorithms = append(i.Algorithms, algorithm)
				return err
			})
		},
	})
	if err != nil {
		return err
	}
	if err := i.Validate(); err != nil {
		return &lineError{n.Line, err}
	}
	if slices.ContainsFunc(r.issuers, func(other jwt.Issuer) bool { return other.URL == i.URL }) {
		return at(n, "issuer %q is repeated", i.URL)
	}
	r.issuers = append(r.issuers, i)
	return nil
}

// known returns an error for a principal that names an issuer that the file does not have.
func (r *reader) known() error {
	for n, d := range r.all {
		for _, c := range d.Issued {
			if !slices.ContainsFunc(r.issuers, func(i jwt.Issuer) bool { return i.URL == c.Issuer }) {
				return &lineError{r.lines[n], fmt.Errorf("%q has tokens of issuer %q, which is not among issuers", d.Name, c.Issuer)}
			}
		}
	}
	return nil
}

// claims parses an entry of jwt.
func claims(n *yaml.Node, d *access.Definition) error {
	c := access.Claims{Equal: map[string]string{}}
	err := fields(n, "an entry of jwt", map[string]func(*yaml.Node) error{
		"issuer": func(n *yaml.Node) error { return text(n, "issuer", &c.Issuer) },
		"claims": func(n *yaml.Node) error {
			if n.Kind != yaml.MappingNode {
				return at(n, "claims: names with their values are needed, such as {sub: cron-7}")
			}
			for i := 0; i+1 < len(n.Content); i += 2 {
				name, value := n.Content[i], ""
				if err := errors.Join(plain(name), text(n.Content[i+1], "claims", &value)); err != nil {
					return err
				}
				if _, twice := c.Equal[name.Value]; twice {
					return at(name, "claim %q is repeated", short(name.Value))
				}
				c.Equal[name.Value] = value
			}
			return plain(n)
		},
	})
	d.Issued = append(d.Issued, c)
	return err
}

func (r *reader) takeGatewayToken(n *yaml.Node, d *access.Definition) error {
	switch {
	case r.gateway != "":
		return at(n, "gateway_token is already assigned to %q", r.gateway)
	case r.gatewayToken == "":
		return at(n, "gateway_token needs --token-file, which has the token")
	}
	r.gateway = "?" // the name may follow later
	d.Tokens = append(d.Tokens, access.DigestOf(r.gatewayToken))
	return nil
}

func digest(n *yaml.Node, d *access.Definition) error {
	var digits string
	if err := text(n, "tokens", &digits); err != nil {
		return err
	}
	one, err := access.ParseDigest(digits)
	if err != nil {
		return &lineError{n.Line, err}
	}
	d.Tokens = append(d.Tokens, one)
	return nil
}

// rules parses an entry of allow: each of its resources is a rule.
func rules(n *yaml.Node, d *access.Definition) error {
	var patterns []string
	var verbs []access.Verb
	err := fields(n, "an entry of allow", map[string]func(*yaml.Node) error{
		"resources": func(n *yaml.Node) error {
			return oneOrEach(n, "resources", func(n *yaml.Node) error {
				var pattern string
				err := text(n, "resources", &pattern)
				if err == nil && pattern == "" {
					err = at(n, "resources have an empty name")
				}
				patterns = append(patterns, pattern)
				return err
			})
		},
		"verbs": func(n *yaml.Node) error {
			return oneOrEach(n, "verbs", func(n *yaml.Node) error {
				var verb string
				err := text(n, "verbs", &verb)
				verbs = append(verbs, access.Verb(verb))
				return err
			})
		},
	})
	if err != nil {
		return err
	}
	if len(patterns) == 0 {
		patterns = []string{""}
	}
	for _, pattern := range patterns {
		rule := access.Rule{Resources: pattern, Verbs: verbs}
		if err := rule.Validate(); err != nil {
			return &lineError{n.Line, err}
		}
		d.Rules = append(d.Rules, rule)
	}
	return nil
}

// fields parses a mapping whose keys must be known and unique.
func fields(n *yaml.Node, what string, known map[string]func(*yaml.Node) error) error {
	if err := plain(n); err != nil {
		return err
	}
	if n.Kind != yaml.MappingNode {
		return at(n, "%s is not made of fields: %s", what, list(known))
	}
	seen := map[string]bool{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		read, ok := known[key.Value]
		switch {
		case !ok || key.Kind != yaml.ScalarNode:
			return at(key, "unknown field %q in %s; it has %s", short(key.Value), what, list(known))
		case seen[key.Value]:
			return at(key, "field %q is repeated", key.Value)
		}
		seen[key.Value] = true
		if err := read(value); err != nil {
			return err
		}
	}
	return nil
}

func list(known map[string]func(*yaml.Node) error) string {
	return strings.Join(slices.Sorted(maps.Keys(known)), ", ")
}

// short keeps an unexpected text out of the log: it may be a token.
func short(key string) string {
	const most = 20
	if len(key) > most {
		return "…"
	}
	return key
}

func each(n *yaml.Node, field string, read func(*yaml.Node) error) error {
	if err := plain(n); err != nil {
		return err
	}
	if n.Kind != yaml.SequenceNode {
		return at(n, "%s: a list is needed", field)
	}
	if len(n.Content) == 0 {
		return at(n, "%s: the list is empty", field)
	}
	for _, one := range n.Content {
		if err := read(one); err != nil {
			return err
		}
	}
	return nil
}

func oneOrEach(n *yaml.Node, field string, read func(*yaml.Node) error) error {
	if n.Kind == yaml.ScalarNode {
		return read(n)
	}
	return each(n, field, read)
}

func text(n *yaml.Node, field string, into *string) error {
	if err := plain(n); err != nil {
		return err
	}
	if n.Kind != yaml.ScalarNode || n.ShortTag() == "!!null" {
		return at(n, "%s: a text is needed", field)
	}
	*into = n.Value
	return nil
}

func boolean(n *yaml.Node, field string) (value bool, err error) {
	if err := plain(n); err != nil {
		return false, err
	}
	if n.ShortTag() != "!!bool" || n.Decode(&value) != nil {
		return false, at(n, "%s: true or false is needed", field)
	}
	return value, nil
}

var errAlias = errors.New(`anchors, aliases and tags are not read here; write "*" in quotes`)

// plain refuses YAML features that change the meaning of a text.
func plain(n *yaml.Node) error {
	if n.Kind == yaml.AliasNode || n.Anchor != "" || n.Style&yaml.TaggedStyle != 0 {
		return &lineError{n.Line, errAlias}
	}
	return nil
}
