package doctor

import (
	"strings"

	"github.com/fencegate/fencegate/lock"
)

// mode reports whether a group is best effort, whether its nodes disagree, and what a durable node guarantees.
func mode(nodes []lock.Node, states []lock.NodeStatus) []Finding {
	const check = "redis.mode"
	var strict, bestEffort []string
	for i, st := range states {
		switch {
		case st.Err != nil || !st.Admitted:
		case st.BestEffort:
			bestEffort = append(bestEffort, nameOf(nodes[i]))
		default:
			strict = append(strict, nameOf(nodes[i]))
		}
	}
	switch {
	case len(bestEffort) > 0 && len(strict) > 0:
		return []Finding{fail(check, strings.Join(bestEffort, ", ")+" best effort, and "+strings.Join(strict, ", ")+" strict: a gateway uses the nodes of its own mode only",
			"Mark all of them, by: fencegate nodes mode strict, or best-effort; and start all gateways with or without --redis-best-effort.")}
	case len(bestEffort) > 0:
		return []Finding{ok(check, "best effort: a node that lost its data is admitted at once; two may hold a resource then, and the fence lets only the newest write")}
	case len(strict) == 1 && len(nodes) == 1:
		return durability(check, nodes[0], states[0])
	}
	return nil
}

// durability examines the only node of a group, which is admitted and strict.
func durability(check string, node lock.Node, st lock.NodeStatus) []Finding {
	name := nameOf(node)
	switch {
	case !node.Durable && !st.Durable:
		return nil
	case !node.Durable:
		return []Finding{warn(check, name+" was admitted as durable, and --redis-durable is not given here: a process without it that admits the node waits for the longest TTL",
			"Give all gateways and commands --redis-durable, or none.")}
	case st.Warning != "":
		return []Finding{warn(check, name+": "+st.Warning+"; after its next restart it is quarantined for the longest TTL",
			"appendonly yes, appendfsync always, no-appendfsync-on-rewrite no, and room for the file; or do without --redis-durable.")}
	case !st.Durable:
		return []Finding{warn(check, name+" is declared durable, and was not when it was admitted: after its next restart it is quarantined for the longest TTL",
			"Restart its server once, when no lease is needed: after that quarantine it is durable.")}
	}
	return []Finding{ok(check, "durable: after a restart %s is admitted at once, with the locks that it kept. Its settings are checked with each admission. "+
		"Other settings, an epoch that was raised in between, or a fence above its counter cost the longest TTL. "+
		"Nothing shows that it was restored from a copy made since its last admission, unless a fence has risen: never restore it", name)}
}
