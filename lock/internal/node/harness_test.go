package node_test

import (
	"bufio"
	"cmp"
	"context"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/fencegate/fencegate/fence/clock"
	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/internal/lifetime"
	"github.com/fencegate/fencegate/internal/memredis"
	"github.com/fencegate/fencegate/internal/testenv"
	"github.com/fencegate/fencegate/lock"
	"github.com/fencegate/fencegate/lock/internal/admission"
	"github.com/fencegate/fencegate/lock/internal/node"
)

// patient is a node timeout for tests that are not about timeouts.
const patient = 20 * time.Second

// messages sends single ops to single nodes, in the order that the test chooses.
type messages struct {
	t     *testing.T
	cfg   lock.Config
	group *admission.Group
	nodes []*node.Node
	keys  *node.Keys
	close func() error
}

func newMessages(t *testing.T, cfg lock.Config) *messages {
	t.Helper()
	m := over(t, cfg)
	testenv.Eventually(t, "the group is initialised", func() error { return m.group.Init(t.Context()) })
	return m
}

// over sends messages to nodes that nobody admits and nobody watches.
func over(t *testing.T, cfg lock.Config) *messages {
	t.Helper()
	if err := cfg.Validate(); err != nil {
		t.Fatal(err)
	}
	if cfg.KeyPrefix == nil {
		cfg.KeyPrefix = lock.Prefix("")
	}
	group := admission.Config{
		NodeTimeout: cmp.Or(cfg.NodeTimeout, lock.DefaultNodeTimeout), MinTTL: leasing.MinTTL, KeyPrefix: cfg.KeyPrefix, Epochs: cfg.Epochs,
		Logger: slog.New(slog.DiscardHandler), Clock: clock.New(), Dice: rand.Int64N, Unwatched: true,
	}
	for _, n := range cfg.Nodes {
		group.Nodes = append(group.Nodes, node.Server{Name: n.Addr, Addr: n.Addr, Dial: n.Dial, Login: n.Login})
	}
	life := lifetime.New(time.Second, leasing.ErrClosed)
	g := admission.New(group, life)
	m := &messages{t, cfg, g, g.Nodes, g.Keys, func() error {
		return life.Close(func() error {
			g.Close()
			return nil
		})
	}}
	t.Cleanup(func() { _ = m.close() })
	return m
}

// client is a Redis client of a node.
func (m *messages) client(i int) *redis.Client {
	c := redis.NewClient(&redis.Options{
		Addr: "node", Protocol: 2, DisableIdentity: true, ContextTimeoutEnabled: true,
		Dialer:                   func(ctx context.Context, _, _ string) (net.Conn, error) { return m.cfg.Nodes[i].Dial(ctx) },
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	})
	m.t.Cleanup(func() { _ = c.Close() })
	return c
}

// inBubble sends messages to n new nodes in memory, with the product's own times.
func inBubble(t *testing.T, n int) (*messages, []*memredis.Node) {
	t.Helper()
	nodes := make([]*memredis.Node, n)
	var cfg lock.Config
	for i := range nodes {
		nodes[i] = memredis.Start(t)
		cfg.Nodes = append(cfg.Nodes, lock.Node{Addr: fmt.Sprintf("node-%d", i+1), Dialer: nodes[i].Dial})
	}
	return newMessages(t, cfg), nodes
}

// replies is a sink with a buffer.
type replies chan node.Reply

func (c replies) Deliver(r node.Reply) { c <- r }

func (m *messages) send(i int, o *node.Op) node.Reply {
	m.t.Helper()
	replies := make(replies, 1)
	o.Resource, o.TTL = "r", 60_000
	o.Node, o.Sink, o.Expires = i, replies, time.Now().Add(time.Minute)
	m.nodes[i].Submit(o)
	r := <-replies
	if r.Err != nil {
		m.t.Fatalf("node %d: %v", i, r.Err)
	}
	return r
}

// run submits ops to one node together and returns their replies in the same order.
func (m *messages) run(i int, ops ...*node.Op) []node.Reply {
	m.t.Helper()
	answers := make([]node.Reply, len(ops))
	sinks := make([]replies, len(ops))
	for k, o := range ops {
		sinks[k] = make(replies, 1)
		o.Sink, o.Node, o.Expires = sinks[k], i, time.Now().Add(time.Minute)
		if o.TTL == 0 {
			o.TTL = 60_000
		}
	}
	m.nodes[i].Submit(ops...)
	for k, c := range sinks {
		answers[k] = <-c
	}
	return answers
}

func (m *messages) on(resource string, kind node.Kind, owner string) *node.Op {
	return &node.Op{Kind: kind, Resource: resource, Ask: node.Ask{Owner: owner, Holder: "h-" + resource}}
}

// onEach runs a directed test over three real nodes, whose scripts Lua runs, and over three embedded ones.
func onEach(t *testing.T, test func(*testing.T, *messages)) {
	t.Helper()
	t.Run("redis", func(t *testing.T) {
		t.Parallel()
		r := testenv.Redis(t, 3)
		cfg := lock.Config{KeyPrefix: lock.Prefix(r.Prefix), NodeTimeout: patient}
		for _, addr := range r.Addrs {
			cfg.Nodes = append(cfg.Nodes, lock.Node{Addr: addr})
		}
		test(t, newMessages(t, cfg))
	})
	t.Run("memory", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			m, _ := inBubble(t, 3)
			test(t, m)
		})
	})
}

// impostor is a node in a bubble whose answers the test chooses.
type impostor struct {
	answer   func(command []string, out io.Writer)
	accepted atomic.Int64 // connections
}

// newImpostor answers HELLO and the query of the incarnation as a node would. Each call of a script gets the next of
// the answers, and the last one repeatedly.
func newImpostor(answers ...string) *impostor {
	var mu sync.Mutex
	next := func() string {
		mu.Lock()
		defer mu.Unlock()
		if len(answers) > 1 {
			defer func() { answers = answers[1:] }()
		}
		return answers[0]
	}
	return &impostor{answer: greeting(func(out io.Writer) { _, _ = io.WriteString(out, next()) })}
}

// greeting answers HELLO and the query of the incarnation as a node would, and everything else as the test says.
func greeting(answer func(out io.Writer)) func(command []string, out io.Writer) {
	return func(command []string, out io.Writer) {
		switch command[0] {
		case "HELLO":
			_, _ = io.WriteString(out, "*4\r\n$4\r\nmode\r\n$10\r\nstandalone\r\n$4\r\nrole\r\n$6\r\nmaster\r\n")
		case "HMGET":
			_, _ = io.WriteString(out, "*2\r\n$5\r\nnonce\r\n$-1\r\n")
		default:
			answer(out)
		}
	}
}

// dial is a Node's Dialer. The connection ends when the client closes it.
func (s *impostor) dial(context.Context, string, string) (net.Conn, error) {
	s.accepted.Add(1)
	client, server := net.Pipe()
	commands := make(chan []string, 1000) // so that the client's writes do not wait for its reads
	go func() {
		defer close(commands)
		for in := bufio.NewReader(server); ; {
			command, err := readCommand(in)
			if err != nil {
				return
			}
			commands <- command
		}
	}()
	go func() {
		defer server.Close()
		for command := range commands {
			switch command[0] {
			case "SCRIPT": // each connection sends this first: see leaveTrace
				_, _ = io.WriteString(server, "$3\r\nsum\r\n")
			case "INFO": // and this: see account
				_, _ = io.WriteString(server, "$0\r\n\r\n")
			default:
				s.answer(command, server)
			}
		}
	}()
	return client, nil
}

func readCommand(in *bufio.Reader) ([]string, error) {
	number := func() (int, error) {
		line, err := in.ReadString('\n')
		if err != nil {
			return 0, err
		}
		return strconv.Atoi(strings.TrimSpace(line[1:]))
	}
	n, err := number()
	if err != nil {
		return nil, err
	}
	command := make([]string, n)
	for i := range command {
		size, err := number()
		if err != nil {
			return nil, err
		}
		text := make([]byte, size+2)
		if _, err := io.ReadFull(in, text); err != nil {
			return nil, err
		}
		command[i] = string(text[:size])
	}
	return command, nil
}

// locker is a Locker over one impostor.
func (s *impostor) locker(t *testing.T) *lock.Locker {
	t.Helper()
	l, err := lock.New(lock.Config{Nodes: []lock.Node{{Addr: "impostor", Password: "open sesame", Dialer: s.dial}}, Epochs: noEpochs{}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// against sends messages to one impostor.
func against(t *testing.T, s *impostor) *messages {
	t.Helper()
	return over(t, lock.Config{Nodes: []lock.Node{{Addr: "impostor", Password: "open sesame", Dialer: s.dial}}, Epochs: noEpochs{}})
}

type noEpochs struct{}

func (noEpochs) RaiseEpoch(context.Context, int64) (int64, error) { return 1, nil }

// one sends an op and waits for its reply.
func (m *messages) one(o *node.Op) node.Reply {
	m.t.Helper()
	return m.run(0, o)[0]
}

// connections fails unless an impostor has been connected to so many times.
func (s *impostor) connections(t *testing.T, want int64) {
	t.Helper()
	if got := s.accepted.Load(); got != want {
		t.Errorf("%d connections; want %d", got, want)
	}
}
