package page_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/accessibility"
	"github.com/chromedp/chromedp"
)

// readsAloud checks Chromium's accessibility tree: each control,
// region and table column has a name, and the headings exist.
func readsAloud(t *testing.T, browser chromium) {
	g := browser.alone(t)
	g.hold("", "orders/1001", "worker A", 10*time.Minute)
	b := browser.open(t, g.base, "/")
	b.live()
	b.shows("#held tbody tr", "orders/1001")
	tree, err := chromedp.Call(b.ctx, accessibility.GetFullAXTree, accessibility.GetFullAXTreeParams{})
	if err != nil {
		t.Fatal(err)
	}
	text := func(v *accessibility.Value) string {
		if v == nil {
			return ""
		}
		return strings.Trim(string(v.Value), `"`)
	}
	var headings []string
	tables := 0
	for _, n := range tree.Nodes {
		if n.Ignored {
			continue
		}
		role, name := text(n.Role), text(n.Name)
		switch role {
		case "button", "link", "textbox", "searchbox", "region", "columnheader", "rowheader":
			if name == "" {
				t.Errorf("a %s has no name", role)
			}
		case "heading":
			headings = append(headings, name)
		case "table":
			tables++
		}
	}
	slices.Sort(headings) // the tree is not in the page's order
	if want := []string{"Held now", "Refused writes", "The gateway", "What else happened", "fencegate"}; !slices.Equal(headings, want) {
		t.Errorf("the headings are %q, want %q", headings, want)
	}
	if tables != 3 {
		t.Errorf("%d tables; want what is held, what was refused, and what else happened", tables)
	}
}
