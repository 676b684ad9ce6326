package lockmetrics

import (
	"fmt"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fencegate/fencegate/fence"
)

// maxPrefixes bounds the number of label values.
const maxPrefixes = 20

// otherPrefix is the label value of resources without one of the prefixes.
const otherPrefix = "other"

// Prefixes are prefixes of resource names, such as "jobs/", for counting held leases.
type Prefixes struct{ longestFirst []string }

// NewPrefixes accepts at most 20 distinct prefixes. The error is a [*fence.InvalidError].
func NewPrefixes(prefixes []string) (Prefixes, error) {
	if len(prefixes) > maxPrefixes {
		return Prefixes{}, &fence.InvalidError{Field: "prefixes", Reason: fmt.Sprintf("are %d; at most %d are allowed", len(prefixes), maxPrefixes)}
	}
	for i, prefix := range prefixes {
		if err := fence.ValidateResource(prefix); err != nil {
			return Prefixes{}, &fence.InvalidError{Field: "prefixes", Reason: fmt.Sprintf("hold %q, with which no resource begins: %v", prefix, err)}
		}
		if prefix == otherPrefix || slices.Contains(prefixes[:i], prefix) {
			return Prefixes{}, &fence.InvalidError{Field: "prefixes", Reason: fmt.Sprintf("hold %q, which is taken: each is a label of its own", prefix)}
		}
	}
	sorted := slices.Clone(prefixes)
	slices.SortFunc(sorted, func(a, b string) int { return len(b) - len(a) })
	return Prefixes{sorted}, nil
}

// of returns the longest prefix of a resource.
func (p Prefixes) of(resource string) string {
	for _, prefix := range p.longestFirst {
		if strings.HasPrefix(resource, prefix) {
			return prefix
		}
	}
	return otherPrefix
}

// byPrefix collects the number of held leases by prefix.
type byPrefix struct {
	prefixes Prefixes
	each     func(visit func(resource string))
	leases   *prometheus.Desc
}

// WatchHeldByPrefix adds the gauge of held leases by resource prefix: the longest matching prefix, or "other". each
// visits the resource of each held lease, as [lock.Locker.EachLease] does. Without prefixes the gauge is not added.
func (m *Metrics) WatchHeldByPrefix(prefixes Prefixes, each func(visit func(resource string))) {
	if len(prefixes.longestFirst) == 0 {
		return
	}
	m.add(&byPrefix{prefixes, each, prometheus.NewDesc("fencegate_leases_held_by_prefix", "Leases that this process holds, by the prefix of the resource.", []string{"prefix"}, nil)})
}

// Describe implements [prometheus.Collector].
func (b *byPrefix) Describe(into chan<- *prometheus.Desc) { into <- b.leases }

// Collect implements [prometheus.Collector].
func (b *byPrefix) Collect(into chan<- prometheus.Metric) {
	count := map[string]int{otherPrefix: 0}
	for _, prefix := range b.prefixes.longestFirst {
		count[prefix] = 0
	}
	b.each(func(resource string) { count[b.prefixes.of(resource)]++ })
	for prefix, n := range count {
		into <- prometheus.MustNewConstMetric(b.leases, prometheus.GaugeValue, float64(n), prefix)
	}
}
