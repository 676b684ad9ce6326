package pgwire

import (
	"strings"
	"time"

	"github.com/fencegate/fencegate/fence"
)

// leaseAsked is a fence.lease in the startup options: RESOURCE;once=NONCE or RESOURCE;fresh, with [;ttl=30s][;wait=5s],
// the name percent-encoded.
type leaseAsked struct {
	resource  string
	nonceHash []byte // of the process run; nil: it keeps no data between connections (fresh)
	ttl, wait time.Duration
}

// neither is the hint for a client that does not say whether it keeps data between connections.
const neither = "Write fence.lease=RESOURCE;once=NONCE if the program keeps data between connections, as one with a pool does: each run of the process makes its own NONCE, " +
	"such as a UUID at its start; never put it into a shared configuration. Write RESOURCE;fresh if each connection begins from what is stored then."

// leaseAsked returns nil if the options ask for no lease. The error is a [*fatalError].
func (f fenceSettings) leaseAsked() (*leaseAsked, error) {
	switch {
	case f.emptyLease: // an empty variable would otherwise mean writing without the intended lease
		return nil, badLease("names no resource")
	case f.lease == "":
		return nil, nil //nolint:nilnil // none is asked for
	case f.resource != "" || f.token != "" || f.grants != "":
		return nil, badLease("can't come together with a grant: it brings its own")
	}
	name, options, more := strings.Cut(f.lease, ";")
	resource, err := fence.UnescapeResource(name)
	if err != nil {
		return nil, badLease("names no resource: " + err.Error())
	}
	l := leaseAsked{resource: resource}
	seen := map[string]bool{}
	var option string
	for more {
		option, options, more = strings.Cut(options, ";")
		name, value, _ := strings.Cut(option, "=")
		if seen[name] {
			return nil, badLease("has " + quote(name) + " twice")
		}
		seen[name] = true
		if refused := l.take(option, name, value); refused != nil {
			return nil, refused
		}
	}
	if seen["once"] == seen["fresh"] {
		refused := badLease("must have ;once=NONCE or ;fresh, and one of them only")
		refused.hint = neither
		return nil, refused
	}
	return &l, nil
}

// take parses one option.
func (l *leaseAsked) take(option, name, value string) *fatalError {
	var err error
	switch {
	case name == "once":
		if l.nonceHash, err = fence.NonceHash(value); err != nil {
			refused := badLease("has no nonce in once=: " + err.Error()) // without the nonce itself
			refused.hint = neither
			return refused
		}
	case option == "fresh":
	case name == "ttl" || name == "wait":
		into := &l.ttl
		if name == "wait" {
			into = &l.wait
		}
		*into, err = time.ParseDuration(value)
		if err != nil || *into < 0 || name == "ttl" && *into == 0 {
			return badLease("has " + quote(option) + ", which is not a duration such as 30s")
		}
	default:
		return badLease("has " + quote(name) + ", which is not once, fresh, ttl or wait")
	}
	return nil
}

func badLease(why string) *fatalError {
	return &fatalError{
		code: codeInvalidParameter, message: "the option fence.lease " + why,
		hint: "Write fence.lease=RESOURCE;once=NONCE;ttl=30s;wait=5s, or RESOURCE;fresh;ttl=30s;wait=5s, the name percent-encoded.",
	}
}
