package lock

import (
	"fmt"
	"strings"
)

// evicts returns an [ErrEvicts] if a node may evict keys, according to INFO memory. Without a memory limit a node
// evicts nothing, whatever its policy.
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

// refuseEvicting asks the node. A login without the right to ask, and a server that does not report it, are accepted.
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
