package pgwire

import (
	"encoding/binary"
	"testing"

	"github.com/jackc/pgx/v5/pgproto3"
)

func message(typ byte, body string) []byte {
	b := binary.BigEndian.AppendUint32([]byte{typ}, uint32(len(body)+4))
	return append(b, body...)
}

func concat(parts ...[]byte) (all []byte) {
	for _, p := range parts {
		all = append(all, p...)
	}
	return all
}

// scanned is the result that a scan in pieces must have, wherever the stream is split.
type scanned struct {
	Ready, Syncs           int
	Status                 byte
	Boundary, Lost, CopyIn bool
	Terminated             bool
}

func scanServer(b []byte, piece int) scanned {
	var s serverStream
	total := 0
	for len(b) > 0 {
		n := min(piece, len(b))
		s.scan(b[:n])
		total += s.ready
		b = b[n:]
	}
	return scanned{Ready: total, Status: s.status, Boundary: s.boundary(), Lost: s.lost, CopyIn: s.copyIn}
}

func scanClient(b []byte, piece int) scanned {
	var c clientStream
	total := 0
	for len(b) > 0 {
		n := min(piece, len(b))
		c.scan(b[:n])
		total += c.syncs
		b = b[n:]
	}
	return scanned{Syncs: total, Boundary: c.boundary(), Lost: c.lost, Terminated: c.terminated}
}

func TestMessagesAreFoundHoweverTheStreamIsCut(t *testing.T) {
	t.Parallel()
	server := concat(message('T', "rows"), message('D', "Z\x00\x00\x00\x05I"), message('C', "SELECT 1\x00"), message('Z', "T"),
		message('D', ""), message('Z', "E"), message('G', "\x00"), message('N', "note"), message('Z', "I"))
	client := concat(message('Q', "SELECT 'Q'\x00"), message('P', "x"), message('B', ""), message('E', ""), message('S', ""),
		message('d', "S\x00\x00\x00\x04"), message('F', "fn"))
	for piece := 1; piece <= len(server); piece++ {
		if got, want := scanServer(server, piece), (scanned{Ready: 3, Status: 'I', Boundary: true}); got != want {
			t.Errorf("server stream in pieces of %d: got %+v, want %+v", piece, got, want)
		}
		if got, want := scanClient(client, piece), (scanned{Syncs: 3, Boundary: true}); got != want {
			t.Errorf("client stream in pieces of %d: got %+v, want %+v", piece, got, want)
		}
	}
}

func TestStreamThatEndsInsideAMessageIsAtNoBoundary(t *testing.T) {
	t.Parallel()
	whole := message('Z', "I")
	for n := 1; n < len(whole); n++ {
		if got := scanServer(whole[:n], 64); got.Boundary || got.Ready != 0 {
			t.Errorf("after %d of %d bytes: %+v", n, len(whole), got)
		}
	}
}

func TestImpossibleLengthEndsTheTracking(t *testing.T) {
	t.Parallel()
	b := concat(message('D', "x"), []byte{'D', 0, 0, 0, 3}, message('Z', "I"))
	for piece := 1; piece <= len(b); piece++ {
		if got, want := scanServer(b, piece), (scanned{Lost: true}); got != want {
			t.Errorf("in pieces of %d: got %+v, want %+v", piece, got, want)
		}
	}
}

func TestLoginIsRelayedUpToReadyForQuery(t *testing.T) {
	t.Parallel()
	before := concat(message('R', "\x00\x00\x00\x00"), message('S', "Z\x00Z\x00"), message('K', "12345678"))
	stream := concat(before, message('Z', "I"), message('A', "later"))
	for piece := 1; piece <= len(stream); piece++ {
		var s serverStream
		passed, done := 0, false
		for b := stream; len(b) > 0 && !done; {
			n := min(piece, len(b))
			at := s.untilReady(b[:n])
			passed += at
			done = at < n
			b = b[n:]
		}
		if !done || passed != len(before) || !s.boundary() {
			t.Errorf("in pieces of %d: found = %v after %d bytes, want after %d", piece, done, passed, len(before))
		}
	}
}

func FuzzFraming(f *testing.F) {
	ready, _ := (&pgproto3.ReadyForQuery{TxStatus: 'I'}).Encode(nil)
	row, _ := (&pgproto3.DataRow{Values: [][]byte{[]byte("1"), nil}}).Encode(nil)
	query, _ := (&pgproto3.Query{String: "SELECT 1"}).Encode(nil)
	f.Add(concat(row, ready), 1)
	f.Add(concat(query, query, message('c', ""), message('S', ""), message('X', "")), 3)
	f.Add(concat(message('G', ""), ready, message('G', ""))[:9], 2)
	f.Add([]byte{'Z', 0, 0, 0, 0, 'I'}, 4)
	f.Add([]byte("Z000000"), 2)                          // a ReadyForQuery with a long body
	f.Add(concat(message('Z', ""), message('0', "")), 3) // one without a status
	f.Add([]byte("\x00\x00\x00\x00\x04\x00"), 3)
	f.Add([]byte{'D', 0xff, 0xff, 0xff, 0xff, 1}, 5)
	f.Fuzz(func(t *testing.T, b []byte, piece int) {
		if piece < 1 || piece > len(b) {
			return
		}
		if got, want := scanServer(b, piece), scanServer(b, len(b)); got != want {
			t.Errorf("server stream: in pieces of %d %+v, whole %+v", piece, got, want)
		}
		if got, want := scanClient(b, piece), scanClient(b, len(b)); got != want {
			t.Errorf("client stream: in pieces of %d %+v, whole %+v", piece, got, want)
		}
		var s serverStream
		if at := s.untilReady(b); at < 0 || at > len(b) || at < len(b) && b[at] != typeReadyForQuery {
			t.Errorf("ReadyForQuery was found at %d of %d", at, len(b))
		}
	})
}
