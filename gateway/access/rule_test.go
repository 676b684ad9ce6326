package access_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/gateway/access"
)

func TestAPatternFitsBytesOnly(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		pattern string
		fits    []string
		not     []string
	}{
		{"*", []string{"", "a", "orders/1", "/"}, nil},
		{"orders/*", []string{"orders/", "orders/1", "orders/1/2", "orders//"}, []string{"", "orders", "order", "Orders/1", "orders%2F1", "xorders/1", "orders"}},
		{"orders/1", []string{"orders/1"}, []string{"", "orders/10", "orders/", "orders/1/2", "orders%2f1"}},
		{"a%2F*", []string{"a%2F", "a%2Fb"}, []string{"a/b", "a%2fb"}},
	} {
		p := access.NewPrincipal("p", access.Rule{Resources: c.pattern, Verbs: []access.Verb{access.Acquire}})
		for _, name := range c.fits {
			if !p.May(access.Acquire, name) {
				t.Errorf("%q does not fit %q", c.pattern, name)
			}
		}
		for _, name := range c.not {
			if p.May(access.Acquire, name) {
				t.Errorf("%q fits %q", c.pattern, name)
			}
		}
		if p.May(access.Revoke, "orders/1") {
			t.Errorf("%q allows another verb", c.pattern)
		}
	}
}

func TestARuleSaysWhatItIsAbout(t *testing.T) {
	t.Parallel()
	sealed := "34." + strings.Repeat("a", 32)
	for _, c := range []struct {
		resources, field string
		verbs            []access.Verb
	}{
		{"orders/*", "", []access.Verb{access.Acquire, access.SQL}},
		{"*", "", []access.Verb{access.Acquire, access.Metrics}},
		{"", "", []access.Verb{access.Metrics, access.Buckets, access.Sessions}},
		{"orders/*", "verbs", nil},
		{"orders/*", "verbs", []access.Verb{"acquires"}},
		{"orders/*", "verbs", []access.Verb{""}},
		{"orders/*", "verbs", []access.Verb{access.SQL, access.SQL}},
		{"orders/*", "verbs", []access.Verb{access.Metrics}},
		{"*", "", []access.Verb{access.S3Read}},
		{"orders/*", "verbs", []access.Verb{access.Acquire, access.S3Read}},
		{"", "resources", []access.Verb{access.S3Read}},
		{"", "resources", []access.Verb{access.Acquire}},
		{"orders/*/x", "resources", []access.Verb{access.Acquire}},
		{"**", "resources", []access.Verb{access.Acquire}},
		{"a\n*", "resources", []access.Verb{access.Acquire}},
		{"a\xff", "resources", []access.Verb{access.Acquire}},
		{strings.Repeat("x", fence.MaxResourceBytes+1), "resources", []access.Verb{access.Acquire}},
		{sealed, "resources", []access.Verb{access.Acquire}},
	} {
		err := access.Rule{Resources: c.resources, Verbs: c.verbs}.Validate()
		invalid, ok := errors.AsType[*fence.InvalidError](err)
		if c.field == "" && err != nil || c.field != "" && (!ok || invalid.Field != c.field) {
			t.Errorf("%q %v: %v; want the field %q", c.resources, c.verbs, err, c.field)
		}
		if err != nil && strings.Contains(err.Error(), sealed) {
			t.Errorf("the error shows a grant: %v", err)
		}
	}
}
