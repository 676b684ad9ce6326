package lockmetrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fencegate/fencegate/internal/recent"
	"github.com/fencegate/fencegate/lock/admin"
)

// Collections within fresh share one query of the nodes, which takes at most lookTimeout.
const (
	fresh       = 5 * time.Second
	lookTimeout = time.Second
)

// States of a node, as a label value.
const (
	stateAdmitted    = "admitted"
	stateQuarantined = "quarantined"
	stateOut         = "not_admitted"
	stateAway        = "away"
)

// nodes collects the state of a group's nodes.
type nodes struct {
	admin                           *admin.Admin
	addNode                         func(node string) // called with each node's name
	states, quarantine, clock, look *prometheus.Desc

	latest *recent.Answer[[]admin.NodeStatus]
}

func newNodes(a *admin.Admin, addNode func(string)) *nodes {
	return &nodes{
		latest:     recent.New[[]admin.NodeStatus](),
		admin:      a,
		addNode:    addNode,
		states:     prometheus.NewDesc("fencegate_lease_nodes", "Redis nodes by state: admitted, quarantined, not_admitted (new, or lost and not begun), or away.", []string{"state"}, nil),
		quarantine: prometheus.NewDesc("fencegate_lease_node_quarantine_seconds", "For how long a Redis node's quarantine still runs; 0: none runs.", []string{"node"}, nil),
		clock:      prometheus.NewDesc("fencegate_lease_node_clock_offset_seconds", "How far a Redis node's clock is ahead of this machine's, give or take a round trip.", []string{"node"}, nil),
		look:       prometheus.NewDesc("fencegate_lease_node_round_trip_seconds", "How long the look at a Redis node took.", []string{"node"}, nil),
	}
}

// Describe implements [prometheus.Collector].
func (n *nodes) Describe(into chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{n.states, n.quarantine, n.clock, n.look} {
		into <- d
	}
}

// Collect implements [prometheus.Collector].
func (n *nodes) Collect(into chan<- prometheus.Metric) {
	count := map[string]int{stateAdmitted: 0, stateQuarantined: 0, stateOut: 0, stateAway: 0}
	for _, st := range n.latest.Get(fresh, lookTimeout, n.admin.Status) {
		count[state(st)]++
		n.addNode(st.Name)
		if st.Err != nil {
			continue
		}
		into <- prometheus.MustNewConstMetric(n.quarantine, prometheus.GaugeValue, st.Quarantine.Seconds(), st.Name)
		into <- prometheus.MustNewConstMetric(n.look, prometheus.GaugeValue, st.RTT.Seconds(), st.Name)
		if st.HasClock {
			into <- prometheus.MustNewConstMetric(n.clock, prometheus.GaugeValue, st.Clock.Seconds(), st.Name)
		}
	}
	for state, nodes := range count {
		into <- prometheus.MustNewConstMetric(n.states, prometheus.GaugeValue, float64(nodes), state)
	}
}

func state(st admin.NodeStatus) string {
	switch {
	case st.Err != nil:
		return stateAway
	case st.Admitted:
		return stateAdmitted
	case st.Quarantine > 0:
		return stateQuarantined
	}
	return stateOut
}
