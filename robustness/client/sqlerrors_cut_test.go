package client

import (
	"bytes"
	"net"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/fencegate/fencegate/robustness/history"
)

// cutter is a proxy that breaks the connection when a client sends a word.
type cutter struct {
	addr   string
	target string

	cut atomic.Int64 // number of breaks

	mu    sync.Mutex
	word  string
	after bool // break after the server has answered the word
}

// cutBefore puts a cutter before the server at an address.
func cutBefore(t *testing.T, address string) (*cutter, string) {
	t.Helper()
	at, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c := &cutter{addr: listener.Addr().String(), target: at.Host}
	var all sync.WaitGroup
	t.Cleanup(func() { _ = listener.Close(); all.Wait() })
	all.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			all.Go(func() { c.carry(conn) })
		}
	})
	at.Host = c.addr
	return c, at.String()
}

// at sets the word for the break; "" lets everything pass.
func (c *cutter) at(word string, after bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.word, c.after = word, after
}

func (c *cutter) carry(client net.Conn) {
	defer client.Close()
	server, err := net.Dial("tcp", c.target)
	if err != nil {
		return
	}
	defer server.Close()
	answers := make(chan struct{})
	silent := make(chan struct{})
	go func() {
		defer close(answers)
		for part := make([]byte, 1<<16); ; {
			n, err := server.Read(part)
			if err != nil {
				_ = client.Close()
				return
			}
			select {
			case <-silent:
				return
			default:
				_, _ = client.Write(part[:n])
			}
		}
	}()
	for part := make([]byte, 1<<16); ; {
		n, err := client.Read(part)
		if err != nil {
			_ = server.Close()
			<-answers
			return
		}
		c.mu.Lock()
		hit, after := c.word != "" && bytes.Contains(bytes.ToLower(part[:n]), []byte(c.word)), c.after
		if hit {
			c.cut.Add(1)
		}
		c.mu.Unlock()
		if hit {
			close(silent)
		}
		if !hit || after {
			_, _ = server.Write(part[:n])
		}
		if hit && after {
			<-answers // the first byte of the answer
		}
		if hit {
			_ = server.Close()
			return
		}
	}
}

func TestWhatIsCutAtCOMMITIsUnknownAndWhatIsCutBeforeIsNot(t *testing.T) {
	t.Parallel()
	world := newStack(t)
	for _, c := range []struct {
		surface, word string
		after         bool
		want          history.Outcome
	}{
		{"library", "commit\x00", false, history.Unknown},
		{"library", "commit\x00", true, history.Unknown},
		{"library", "update judged", false, history.Failed},
		{"http-direct", "commit\x00", true, history.Unknown},
		{"http-direct", "update judged", false, history.Failed},
		{"http-port", "commit\x00", false, history.Unknown},
		{"http-port", "commit\x00", true, history.Unknown},
		{"http-port", "update judged", true, history.Failed},
		{"http-sql", "update judged", false, history.Unknown},
		{"http-sql", "update judged", true, history.Unknown},
		{"run-psql", "commit;", true, history.Unknown},
		{"run-psql", "update judged", false, history.Failed},
	} {
		name := c.surface + " " + strings.TrimSuffix(c.word, "\x00")
		if c.after {
			name += " after"
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			own := *world
			g := own.cfg.Gateways[0]
			var api, port, direct *cutter
			api, g.API = cutBefore(t, g.API)
			port, g.PGURL = cutBefore(t, g.PGURL)
			direct, own.cfg.WriterURL = cutBefore(t, own.cfg.WriterURL)
			resource := world.resource(t)
			own.cfg.Gateways = []Gateway{g}
			s := own.surface(t, c.surface, 1)
			h := acquire(t, s, resource)
			for _, cut := range []*cutter{api, port, direct} {
				cut.at(c.word, c.after)
			}
			err := h.write(bounded(t), to("a", nil))
			if outcome, code := outcomeOf(err); outcome != c.want {
				t.Errorf("%s %s: %v", outcome, code, err)
			}
			if n := api.cut.Load() + port.cut.Load() + direct.cut.Load(); n != 1 {
				t.Errorf("cut %d times", n)
			}
			want := 0
			if c.after && c.want == history.Unknown {
				want = 1
			}
			if got := world.effects(t, "row:"+resource); len(got) != want {
				t.Errorf("effects %q", got)
			}
		})
	}
}
