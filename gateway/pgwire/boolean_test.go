package pgwire

import "testing"

// Physical replication has its own policies. If the gateway parsed the parameter differently than PostgreSQL, another
// policy would apply.
func TestReplicationIsReadAsPostgreSQLReadsIt(t *testing.T) {
	t.Parallel()
	for value, physical := range map[string]bool{
		"true": true, "TRUE": true, "tr": true, "T": true, "yes": true, "Ye": true, "y": true, "on": true, "ON": true, "1": true,
		"": false, "o": false, "onn": false, "trues": false, "10": false, "off": false, "false": false, "0": false, "no": false, "database": false,
	} {
		p, err := read(startupPacket(version30, "user\x00ada\x00replication\x00"+value+"\x00\x00"))
		if err != nil {
			t.Fatal(err)
		}
		who, err := parseStartup(p)
		if err != nil || who.physical != physical {
			t.Errorf("replication=%s: physical %v, %v; want %v", value, who.physical, err, physical)
		}
		rules := []Rule{{"*", "replication", PolicyGrantRequired}, {"*", "*", PolicyOpen}}
		if got := policyFor(rules, who); (got == PolicyGrantRequired) != physical {
			t.Errorf("replication=%s: policy %v", value, got)
		}
	}
}
