package pgwire

import "testing"

func TestGrantIsFoundWherePostgreSQLFindsIt(t *testing.T) {
	t.Parallel()
	for body, want := range map[string]claim{
		"options\x00-c fence.resource=orders/1 -c fence.token=34.ab\x00":                           {"orders/1", 34},
		"options\x00-cfence.resource=orders/1 --fence.token=34.ab\x00":                             {"orders/1", 34},
		"options\x00-c\tFENCE.Resource=a%2Fb   -c fence.token=0.ab\x00":                            {"a/b", 0},
		"options\x00-c fence.resource=a\\ b -c fence.token=7\x00":                                  {"a b", 7},
		"options\x00-c fence.token=1.ab -c fence.resource=a -c fence.token=2.ab\x00":               {"a", 2},
		"options\x00-c fence.resource=a -c fence.token=1.ab\x00fence.token\x002.ab\x00":            {"a", 2},
		"fence.resource\x00a\x00fence.token\x003.ab\x00":                                           {"a", 3},
		"fence.resource\x00a\x00options\x00-c fence.resource=b -c fence.token=1.ab\x00":            {"a", 1},
		"options\x00-c fence.resource=a\x00":                                                       {},
		"options\x00-c fence.token=1.ab\x00":                                                       {},
		"options\x00-c fence.resource=a -c fence.token=x.ab\x00":                                   {},
		"options\x00-c fence.resource=a -c fence.token=0\x00":                                      {},
		"options\x00-c fence.resource=a%2 -c fence.token=1.ab\x00":                                 {},
		"options\x00-c search_path=x -c\x00":                                                       {},
		"options\x00\\\x00":                                                                        {},
		"application_name\x00-c fence.resource=a -c fence.token=1\x00options\x00-c geqo=off\x00":   {},
		"options\x00-c application_name=fence.resource=a -c fence.resource=b -c fence.token=1\x00": {"b", 1},
	} {
		p, err := read(startupPacket(version30, "user\x00ada\x00"+body+"\x00"))
		if err != nil {
			t.Fatal(err)
		}
		if who, err := parseStartup(p); err != nil || who.claim != want {
			t.Errorf("%q: %+v, %v; want %+v", body, who.claim, err, want)
		}
	}
}
