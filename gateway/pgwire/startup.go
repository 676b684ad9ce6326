package pgwire

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
)

// Codes in place of a startup packet's protocol version.
const (
	codeCancel    = 1234<<16 | 5678
	codeSSL       = 1234<<16 | 5679
	codeGSSEnc    = 1234<<16 | 5680
	majorProtocol = 3
)

const (
	// maxStartupBytes is PostgreSQL's limit.
	maxStartupBytes = 10000
	// maxCancelKeyBytes is protocol 3.2's limit; keys of 3.0 have 4 bytes.
	maxCancelKeyBytes = 256
	// keyPidBytes is the size of the process id before a cancel key.
	keyPidBytes = 4
	// minPacketBytes is the size of the length and the code.
	minPacketBytes = 8
	// tlsHandshake is the first byte of a TLS record that opens a handshake.
	tlsHandshake = 0x16
	alpn         = "postgresql"
)

// packet is one of the messages without a type byte that open a connection, unchanged, including its length.
type packet []byte

func (p packet) code() uint32 { return binary.BigEndian.Uint32(p[4:8]) }

// readPacket reads an opening packet, whose first byte has been read already. It reads nothing beyond the packet's end,
// so that plain bytes that a client sends before a TLS handshake are never taken for encrypted ones.
func readPacket(r io.Reader, first byte) (packet, error) {
	head := [minPacketBytes]byte{first}
	if _, err := io.ReadFull(r, head[1:4]); err != nil {
		return nil, err
	}
	n := binary.BigEndian.Uint32(head[:4])
	if n < minPacketBytes || n > maxStartupBytes {
		return nil, &fatalError{
			code:    codeProtocolViolation,
			message: fmt.Sprintf("invalid length of startup packet: %d bytes; %d to %d are allowed", n, minPacketBytes, maxStartupBytes),
		}
	}
	p := make(packet, n)
	copy(p, head[:4])
	if _, err := io.ReadFull(r, p[4:]); err != nil {
		return nil, err
	}
	return p, nil
}

// startup is what the relay parses from a copy of a StartupMessage.
type startup struct {
	user, database string
	application    string // the client's application_name
	physical       bool   // physical replication, which has no database
	replicates     bool   // physical or logical replication
	claims         claims
	presents       bool // a grant, well-formed or not
}

// parseStartup parses a StartupMessage. The packet itself is passed on unchanged.
func parseStartup(p packet) (startup, error) {
	var s startup
	if major := p.code() >> 16; major != majorProtocol {
		return s, &fatalError{
			code:    codeUnsupported,
			message: fmt.Sprintf("unsupported frontend protocol %d.%d: this gateway relays 3.x", major, p.code()&0xffff),
		}
	}
	logical := false // once requested, PostgreSQL keeps it, and the database
	var set settings
	malformed := &fatalError{code: codeProtocolViolation, message: "invalid startup packet layout: expected terminator as last byte"}
	for b := []byte(p[minPacketBytes:]); ; {
		name, rest, ok := cutString(b)
		if !ok {
			return s, malformed
		}
		if name == "" {
			if len(rest) != 0 {
				return s, malformed
			}
			break
		}
		value, rest, ok := cutString(rest)
		if !ok {
			return s, malformed
		}
		switch name {
		case "user":
			s.user = value
		case "database":
			s.database = value
		case "replication":
			logical = logical || value == "database"
			s.physical = isTrue(value)
		case "options":
			set.options(value)
		default:
			set.fromMessage.assign(name, value)
		}
		b = rest
	}
	s.replicates = s.physical || logical
	s.physical = s.physical && !logical
	asked := set.effective()
	s.application = asked.application
	s.claims, s.presents = asked.claims(), asked.presents()
	switch {
	case s.user == "":
		return s, &fatalError{code: codeInvalidAuthorization, message: "no PostgreSQL user name specified in startup packet"}
	case asked.unknown != "": // PostgreSQL would accept it, and the session would write without the intended grant
		return s, &fatalError{
			code: codeUndefinedParameter, message: "unrecognized configuration parameter " + quote(asked.unknown),
			hint: "The fence's options are fence.resource, fence.token and fence.grants.",
		}
	}
	if s.database == "" {
		s.database = s.user
	}
	return s, nil
}

// withSettings returns a StartupMessage with these settings (name, value, …), which override the client's. The error is
// a [*fatalError]: the packet has become too long.
func withSettings(p packet, add ...string) (packet, error) {
	out := slices.Clone(p[:len(p)-1]) // without the terminator
	for _, s := range add {
		out = append(append(out, s...), 0)
	}
	out = append(out, 0)
	if len(out) > maxStartupBytes {
		return nil, &fatalError{
			code:    codeProtocolViolation,
			message: fmt.Sprintf("the startup packet is too long for the gateway's own settings: %d bytes with them; %d are allowed", len(out), maxStartupBytes),
		}
	}
	binary.BigEndian.PutUint32(out, uint32(len(out)))
	return out, nil
}

// maxApplication is how much of an application_name PostgreSQL keeps, in bytes.
const maxApplication = 63

// applicationFrom returns a client's application_name with its address; PostgreSQL itself sees only the gateway's. It
// truncates the name, never the address.
func applicationFrom(name, client string) string {
	at := "@" + client
	if name == "" {
		return at
	}
	room := max(0, maxApplication-len(at)-1)
	if len(name) > room {
		name = strings.ToValidUTF8(name[:room], "")
	}
	return strings.TrimLeft(name+" "+at, " ")
}

func cutString(b []byte) (value string, rest []byte, ok bool) {
	text, rest, ok := bytes.Cut(b, []byte{0})
	return string(text), rest, ok
}

// isTrue parses a boolean as PostgreSQL does for the replication parameter: case-insensitively, and words also by their
// prefixes. "database" is not one of them: it asks for logical replication.
func isTrue(value string) bool {
	if value == "1" || strings.EqualFold(value, "on") {
		return true
	}
	for _, word := range []string{"true", "yes"} {
		if n := len(value); 0 < n && n <= len(word) && strings.EqualFold(value, word[:n]) {
			return true
		}
	}
	return false
}

// cancelRequest returns the packet that cancels the backend with this process id and key; nil without a key.
func cancelRequest(key []byte) packet {
	if len(key) <= keyPidBytes {
		return nil
	}
	p := binary.BigEndian.AppendUint32(nil, uint32(minPacketBytes+len(key)))
	p = binary.BigEndian.AppendUint32(p, codeCancel)
	return append(p, key...)
}

// validCancel reports whether p is a CancelRequest of protocol 3.0 or 3.2:
// a process id and a key of 4 to 256 bytes.
func validCancel(p packet) bool {
	const beforeKey = minPacketBytes + keyPidBytes
	return len(p) >= beforeKey+4 && len(p) <= beforeKey+maxCancelKeyBytes
}

// maxNameBytes is PostgreSQL's limit for names.
const maxNameBytes = 63

// truncate returns the name that PostgreSQL looks up: it uses the first 63 bytes of a client's name, so two spellings
// may be one role.
func truncate(name string) string { return name[:min(len(name), maxNameBytes)] }

// quote quotes a client's text for an error, bounded and on one line.
func quote(name string) string {
	if len(name) > maxNameBytes {
		name = name[:maxNameBytes] + "…"
	}
	return strconv.Quote(name)
}

// maxPrintableBytes bounds a name in a DETAIL, in bytes.
const maxPrintableBytes = 100

// printableName returns a name without control characters and invalid UTF-8.
func printableName(name string) string {
	quoted := strconv.QuoteToASCII(truncate(name))
	return quoted[1:min(len(quoted)-1, maxPrintableBytes)]
}
