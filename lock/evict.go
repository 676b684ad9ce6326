package lock

import (
	"fmt"
	"strings"
)

// evicts is an [ErrEvicts] where a node may evict keys, by what INFO memory says. One without a
// memory limit evicts nothing, whatever its policy.
func evicts(info string) error {
	var limit, policy string
	for line := range strings.Lines(info) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		switch name {
		case "maxmemory":
			limit = value
		case "maxmemory_policy":
			policy = value
		}
	}
	if limit == "" || limit == "0" || policy == "" || policy == "noeviction" {
		return nil
	}
	return fmt.Errorf("%w: its policy is %s, and its limit %s bytes", ErrEvicts, policy, limit)
}

// refuseEvicting asks the node. A login that may not ask, and a server that does not say, pass.
func (k *link) refuseEvicting() error {
	vals, err := k.do("INFO", "memory")
	switch {
	case isReplyError(err):
		return nil
	case err != nil || len(vals) != 1:
		return err
	}
	return evicts(vals[0].text)
}
