package pgwire

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"reflect"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgproto3"
)

func startupPacket(code uint32, body string) []byte {
	b := binary.BigEndian.AppendUint32(nil, uint32(len(body)+8))
	b = binary.BigEndian.AppendUint32(b, code)
	return append(b, body...)
}

const version30 = 3 << 16

func read(b []byte) (packet, error) {
	if len(b) == 0 {
		return nil, io.EOF
	}
	return readPacket(bytes.NewReader(b[1:]), b[0])
}

func TestStartupIsReadFromACopy(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		body string
		want startup
	}{
		"user and database":      {"user\x00ada\x00database\x00shop\x00\x00", startup{user: "ada", database: "shop"}},
		"database defaults":      {"user\x00ada\x00\x00", startup{user: "ada", database: "ada"}},
		"empty value":            {"user\x00ada\x00options\x00\x00database\x00shop\x00\x00", startup{user: "ada", database: "shop"}},
		"grant in options":       {"user\x00ada\x00options\x00-c fence.resource=a -c fence.token=1\x00\x00", startup{user: "ada", database: "ada", claims: claims{{"a", 1}}, presents: true}},
		"physical replication":   {"user\x00ada\x00replication\x00true\x00\x00", startup{user: "ada", database: "ada", physical: true, replicates: true}},
		"logical replication":    {"user\x00ada\x00replication\x00database\x00database\x00shop\x00\x00", startup{user: "ada", database: "shop", replicates: true}},
		"logical stays logical":  {"user\x00ada\x00replication\x00database\x00replication\x00true\x00database\x00shop\x00\x00", startup{user: "ada", database: "shop", replicates: true}},
		"physical, then logical": {"user\x00ada\x00replication\x00true\x00replication\x00database\x00database\x00shop\x00\x00", startup{user: "ada", database: "shop", replicates: true}},
		"protocol extension":     {"_pq_.x\x001\x00user\x00ada\x00\x00", startup{user: "ada", database: "ada"}},
		"last of two repetition": {"user\x00ada\x00user\x00bob\x00\x00", startup{user: "bob", database: "bob"}},
	} {
		p, err := read(startupPacket(version30, c.body))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if got, err := parseStartup(p); err != nil || !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: got %+v, %v; want %+v", name, got, err, c.want)
		}
	}
}

func TestMalformedStartupIsRefusedWithItsReason(t *testing.T) {
	t.Parallel()
	long := "user\x00" + strings.Repeat("x", maxStartupBytes) + "\x00\x00"
	for name, c := range map[string]struct {
		bytes []byte
		code  string
		says  string
	}{
		"HTTP":               {[]byte("GET / HTTP/1.1\r\n\r\n"), codeProtocolViolation, "invalid length"},
		"length zero":        {[]byte{0, 0, 0, 0, 0, 3, 0, 0}, codeProtocolViolation, "invalid length of startup packet: 0 bytes"},
		"length negative":    {[]byte{0xff, 0xff, 0xff, 0xff, 0, 3, 0, 0}, codeProtocolViolation, "invalid length"},
		"too long":           {startupPacket(version30, long), codeProtocolViolation, "10000"},
		"no terminator":      {startupPacket(version30, "user\x00ada"), codeProtocolViolation, "terminator"},
		"no last terminator": {startupPacket(version30, "user\x00ada\x00"), codeProtocolViolation, "terminator"},
		"behind the end":     {startupPacket(version30, "user\x00ada\x00\x00more"), codeProtocolViolation, "terminator"},
		"empty":              {startupPacket(version30, ""), codeProtocolViolation, "terminator"},
		"no user":            {startupPacket(version30, "database\x00shop\x00\x00"), codeInvalidAuthorization, "no PostgreSQL user"},
		"protocol 2":         {startupPacket(2<<16, "user\x00ada\x00\x00"), codeUnsupported, "protocol 2.0"},
		"protocol 4":         {startupPacket(4<<16|7, "user\x00ada\x00\x00"), codeUnsupported, "protocol 4.7"},
	} {
		p, err := read(c.bytes)
		if err == nil {
			_, err = parseStartup(p)
		}
		refusal, ok := asFatalError(err)
		if !ok || refusal.code != c.code || !strings.Contains(refusal.message, c.says) {
			t.Errorf("%s: got %v, want %s … %q", name, err, c.code, c.says)
		}
	}
}

func TestStartupThatIsCutShortIsNoRefusal(t *testing.T) {
	t.Parallel()
	whole := startupPacket(version30, "user\x00ada\x00\x00")
	for n := range whole {
		_, err := read(whole[:n])
		if !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("after %d bytes: %v", n, err)
		}
	}
}

func TestCancelKeysMayBeAsLongAsProtocol32Allows(t *testing.T) {
	t.Parallel()
	for keyBytes, want := range map[int]bool{0: false, 3: false, 4: true, 32: true, 256: true, 257: false} {
		p := packet(startupPacket(codeCancel, "\x00\x00\x00\x01"+strings.Repeat("k", keyBytes)))
		if got := validCancel(p); got != want {
			t.Errorf("a key of %d bytes: valid = %v, want %v", keyBytes, got, want)
		}
	}
}

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

func FuzzStartup(f *testing.F) {
	f.Add(startupPacket(version30, "user\x00ada\x00database\x00shop\x00\x00"))
	f.Add(startupPacket(version30|2, "user\x00ada\x00replication\x00on\x00\x00"))
	f.Add(startupPacket(codeSSL, ""))
	f.Add(startupPacket(codeCancel, "\x00\x00\x00\x01key!"))
	f.Add(startupPacket(version30, "user\x00"))
	f.Add([]byte("GET / HTTP/1.1\r\n\r\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := read(b)
		if err != nil {
			return
		}
		if len(p) > maxStartupBytes || !bytes.Equal(p, b[:len(p)]) {
			t.Fatalf("a packet of %d bytes is not the input's beginning", len(p))
		}
		_ = validCancel(p)
		who, err := parseStartup(p)
		if err != nil {
			return
		}
		// pgproto3 also accepts what the relay accepts.
		var m pgproto3.StartupMessage
		if err := m.Decode(p[4:]); err != nil {
			return // it knows fewer versions
		}
		if m.Parameters["user"] != who.user {
			t.Errorf("user %q, pgproto3 reads %q", who.user, m.Parameters["user"])
		}
	})
}
