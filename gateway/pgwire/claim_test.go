package pgwire

import (
	"errors"
	"reflect"
	"strings"
	"testing"
)

func TestGrantIsFoundWherePostgreSQLFindsIt(t *testing.T) {
	t.Parallel()
	for body, want := range map[string]claims{
		"options\x00-c fence.resource=orders/1 -c fence.token=34.ab\x00":                           {{"orders/1", 34}},
		"options\x00-cfence.resource=orders/1 --fence.token=34.ab\x00":                             {{"orders/1", 34}},
		"options\x00-c\tFENCE.Resource=a%2Fb   -c fence.token=0.ab\x00":                            {{"a/b", 0}},
		"options\x00-c fence.resource=a\\ b -c fence.token=7\x00":                                  {{"a b", 7}},
		"options\x00-c fence.token=1.ab -c fence.resource=a -c fence.token=2.ab\x00":               {{"a", 2}},
		"options\x00-c fence.resource=a -c fence.token=1.ab\x00fence.token\x002.ab\x00":            {{"a", 2}},
		"fence.resource\x00a\x00fence.token\x003.ab\x00":                                           {{"a", 3}},
		"fence.resource\x00a\x00options\x00-c fence.resource=b -c fence.token=1.ab\x00":            {{"a", 1}},
		"options\x00-c fence.resource=a\x00":                                                       nil,
		"options\x00-c fence.token=1.ab\x00":                                                       nil,
		"options\x00-c fence.resource=a -c fence.token=x.ab\x00":                                   nil,
		"options\x00-c fence.resource=a -c fence.token=0\x00":                                      nil,
		"options\x00-c fence.resource=a%2 -c fence.token=1.ab\x00":                                 nil,
		"options\x00-c fence.grants=a=1.ab,b%2Cc=0.ab,=1,x,d=y\x00":                                {{"a", 1}, {"b,c", 0}},
		"options\x00-c fence.grants=a=1.ab -c fence.resource=b -c fence.token=2.ab\x00":            {{"b", 2}, {"a", 1}},
		"options\x00-c search_path=x -c\x00":                                                       nil,
		"options\x00\\\x00":                                                                        nil,
		"application_name\x00-c fence.resource=a -c fence.token=1\x00options\x00-c geqo=off\x00":   nil,
		"options\x00-c application_name=fence.resource=a -c fence.resource=b -c fence.token=1\x00": {{"b", 1}},
	} {
		p, err := read(startupPacket(version30, "user\x00ada\x00"+body+"\x00"))
		if err != nil {
			t.Fatal(err)
		}
		if who, err := parseStartup(p); err != nil || !reflect.DeepEqual(who.claims, want) {
			t.Errorf("%q: %+v, %v; want %+v", body, who.claims, err, want)
		}
	}
}

// Anyone who logs in decides how many grants a startup packet has, and every look compares all that are watched.
func TestTheWatchedGrantsOfASessionAreBounded(t *testing.T) {
	t.Parallel()
	p, err := read(startupPacket(version30, "user\x00ada\x00options\x00-c fence.grants="+strings.Repeat("a=5.ab,", 900)+"\x00\x00"))
	if err != nil {
		t.Fatal(err)
	}
	if who, err := parseStartup(p); err != nil || len(who.claims) != maxClaims || !who.presents {
		t.Errorf("%d grants are watched, %v; want %d", len(who.claims), err, maxClaims)
	}
}

func TestARuleFitsARoleHoweverItsNameIsSpelled(t *testing.T) {
	t.Parallel()
	name := strings.Repeat("x", maxNameBytes) // PostgreSQL uses no more of a client's name
	rules := []Rule{{User: name, Database: "*", Policy: PolicyGrantRequired}}
	for user, want := range map[string]Policy{name: PolicyGrantRequired, name + "y": PolicyGrantRequired, name[1:]: PolicyOpen, "*": PolicyOpen} {
		if got := policyFor(rules, startup{user: user, database: "shop"}); got != want {
			t.Errorf("%s: policy %d, want %d", user, got, want)
		}
	}
}

// PostgreSQL would accept it: a session with a misspelled grant would write without one.
func TestAnUnknownOptionOfTheFenceIsRefused(t *testing.T) {
	t.Parallel()
	for _, body := range []string{
		"options\x00-c fence.resource=a -c fence.tokens=1.ab\x00",
		"options\x00--FENCE.Tokens=1.ab\x00",
		"fence.resource\x00a\x00fence.tokens\x00\x00",
	} {
		p, err := read(startupPacket(version30, "user\x00ada\x00"+body+"\x00"))
		if err != nil {
			t.Fatal(err)
		}
		var refused *fatalError
		if _, err := parseStartup(p); !errors.As(err, &refused) || refused.code != "42704" || !strings.Contains(refused.message, `"fence.tokens"`) {
			t.Errorf("%q: %v", body, err)
		}
	}
}

func TestAddedSettingsFollowTheClients(t *testing.T) {
	t.Parallel()
	const body = "user\x00ada\x00options\x00-c  geqo=off\x00x.y\x00\x00"
	p, err := read(startupPacket(version30, body+"\x00"))
	if err != nil {
		t.Fatal(err)
	}
	got, err := withSettings(p, "x.y", "z")
	if want := startupPacket(version30, body+"x.y\x00z\x00\x00"); err != nil || string(got) != string(want) {
		t.Errorf("%q became %q, %v; want %q", p, got, err, want)
	}
	if _, err := withSettings(p, "x.y", strings.Repeat("z", maxStartupBytes-len(p))); err == nil {
		t.Error("a packet over PostgreSQL's limit is sent")
	}
}
