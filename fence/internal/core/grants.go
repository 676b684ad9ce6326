package core

import (
	"fmt"
	"strings"

	"github.com/fencegate/fencegate/fence"
)

// ValidateGrants reports whether these grants can be presented together.
func ValidateGrants(grants []fence.Grant) error {
	if len(grants) == 0 {
		return &fence.NoGrantError{}
	}
	seen := make(map[string]bool, len(grants))
	for _, g := range grants {
		if err := g.Validate(); err != nil {
			return err
		}
		if seen[g.Resource] {
			return &fence.InvalidError{Field: "grants", Reason: fmt.Sprintf("name %q twice", g.Resource)}
		}
		seen[g.Resource] = true
	}
	return nil
}

// most is how many names an error lists.
const most = 3

// GrantNames lists grants for messages, without their seals.
func GrantNames(grants []fence.Grant) string {
	return listed(len(grants), func(i int) string { return grants[i].String() })
}

// ArmingNames lists resources and tokens for messages.
func ArmingNames(all []fence.Arming) string {
	return listed(len(all), func(i int) string { return fmt.Sprintf("%q to %d", all[i].Resource, all[i].Token) })
}

func listed(n int, name func(int) string) string {
	names := make([]string, 0, most+1)
	for i := range min(n, most) {
		names = append(names, name(i))
	}
	if n > most {
		names = append(names, fmt.Sprintf("%d more", n-most))
	}
	return strings.Join(names, ", ")
}

// Using chooses the statement that presents the grants, and its arguments. A single grant has its own statement,
// which is faster.
func Using(grants []fence.Grant, one, many string) (sql string, args []any) {
	if len(grants) == 1 {
		return one, []any{grants[0].Resource, grants[0].Presented()}
	}
	resources, tokens := make([]string, len(grants)), make([]string, len(grants))
	for i, g := range grants {
		resources[i], tokens[i] = g.Resource, g.Presented()
	}
	return many, []any{resources, tokens}
}
