//go:build linux

package lock_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/fencegate/fencegate/internal/child"
	"github.com/fencegate/fencegate/internal/redisserver"
	"github.com/fencegate/fencegate/internal/testenv/clockshim"
)

// odds are the relative frequencies of a node's faults.
type odds struct{ lose, late, freeze, kill, flush int }

var everything = odds{lose: 6, late: 4, freeze: 4, kill: 2, flush: 1}

type faultCounts struct{ kills, cuts, flushes, freezes, jumps, lost, taken, stops atomic.Int64 }

// tortureGroup is a group of real nodes, each with its own relay, clock and folder.
type tortureGroup struct {
	s         scenario
	nodes     []*tortureNode
	counts    faultCounts
	histories string // pattern of the clients' files; "": there are none
}

type tortureNode struct {
	server *redisserver.Server
	direct *redis.Client
	relay  *relay
	clock  *clockshim.Clock
	dir    string
	cfg    redisserver.Config
}

func newTortureGroup(t *testing.T, s scenario) *tortureGroup {
	t.Helper()
	g := &tortureGroup{s: s}
	clock := clockshim.New(t)
	for i := range s.nodes {
		n := &tortureNode{clock: clock.Another(t), dir: t.TempDir()}
		n.cfg = redisserver.Config{
			Dir: n.dir, Env: n.clock.Env(), AppendOnly: []redisserver.Persistence{redisserver.Always, redisserver.None, redisserver.EverySec}[i%3],
			Args: []string{"--auto-aof-rewrite-min-size", "4mb"},
		}
		var err error
		n.server, err = redisserver.Start(t.Context(), n.cfg)
		must(t, err)
		n.direct = redis.NewClient(&redis.Options{Addr: n.server.Addr, MaxRetries: -1})
		t.Cleanup(func() {
			if err := errors.Join(n.direct.Close(), n.server.Close()); err != nil {
				t.Error(err)
			}
		})
		n.relay = newRelay(t, n.server.Addr)
		g.nodes = append(g.nodes, n)
	}
	return g
}

func (g *tortureGroup) addrs() []string {
	var addrs []string
	for _, n := range g.nodes {
		addrs = append(addrs, n.relay.addr)
	}
	return addrs
}

// between is how many acquisitions come through before the next fault of the same node or client, if the clients get
// any at all.
const between = 3

// next waits until some acquisitions have come through, or for a while, and returns how many there have been. Faults
// that come by time alone leave a busy machine no time for an acquisition.
func (g *tortureGroup) next(ctx context.Context, before int64) (acquired int64) {
	for end := monotonic() + g.s.scaled(time.Second); ; {
		acquired = g.acquired()
		if g.histories == "" || acquired >= before+between || monotonic() >= end || ctx.Err() != nil {
			return acquired
		}
		rest(ctx, 10*time.Millisecond)
	}
}

// acquired is how many acquisitions the clients have recorded.
func (g *tortureGroup) acquired() (records int64) {
	files, _ := filepath.Glob(g.histories)
	for _, file := range files {
		if info, err := os.Stat(file); err == nil {
			records += info.Size() / int64(recordSize)
		}
	}
	return records / 2 // each is written twice
}

// torment causes one fault after another on a node until ctx ends, and repairs it at the end.
func (g *tortureGroup) torment(ctx context.Context, t *testing.T, n *tortureNode, random *rand.Rand) {
	o := g.s.odds
	ms := func(up int) { rest(ctx, g.s.scaled(time.Duration(random.Int64N(int64(up)*int64(time.Millisecond))))) }
	for acquired := int64(0); ; {
		ms(400)
		if acquired = g.next(ctx, acquired); ctx.Err() != nil {
			return
		}
		if g.s.jumps && random.IntN(3) == 0 {
			g.jump(t, n, random)
		}
		switch pick := random.IntN(o.lose + o.late + o.freeze + o.kill + o.flush); {
		case pick < o.lose:
			n.relay.losing.Store(true)
			ms(30)
			n.relay.losing.Store(false)
		case pick < o.lose+o.late:
			g.counts.taken.Add(1)
			way := &n.relay.requests
			if random.IntN(2) == 0 {
				way = &n.relay.replies
			}
			way.close()
			ms(120)
			way.open()
		case pick < o.lose+o.late+o.freeze:
			g.counts.freezes.Add(1)
			check(t, n.server.Freeze())
			if ms(120); random.IntN(10) == 0 {
				ms(2000) // longer than a connection waits
			}
			check(t, n.server.Thaw())
		case pick < o.lose+o.late+o.freeze+o.kill:
			g.counts.kills.Add(1)
			check(t, n.server.Kill())
			if random.IntN(2) == 0 && n.cutLog(t, random) {
				g.counts.cuts.Add(1)
			}
			check(t, n.server.Restart(context.WithoutCancel(ctx)))
		default:
			g.counts.flushes.Add(1)
			g.flush(n, random)
		}
	}
}

// flush deletes data or the scripts while the node runs.
func (g *tortureGroup) flush(n *tortureNode, random *rand.Rand) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if g.s.broken != "" {
		_ = n.direct.FlushAll(ctx).Err()
		return
	}
	switch random.IntN(4) {
	case 0:
		_ = n.direct.FlushAll(ctx).Err()
	case 1:
		_ = n.direct.Del(ctx, "torture:h").Err()
	case 2:
		_ = n.direct.ScriptFlush(ctx).Err()
	default: // all at once
		for _, other := range g.nodes {
			_ = other.direct.FlushAll(ctx).Err()
		}
	}
}

// jump sets a node's clock ahead, back, or right, by small or large amounts; sometimes that of every node at once.
func (g *tortureGroup) jump(t *testing.T, n *tortureNode, random *rand.Rand) {
	reach := []time.Duration{1, 5 * time.Millisecond, 50 * time.Millisecond, time.Second, time.Minute, 3 * time.Hour}[random.IntN(6)]
	to := time.Duration(random.Int64N(int64(2*reach))) - reach
	nodes := []*tortureNode{n}
	if random.IntN(4) == 0 {
		nodes = g.nodes
	}
	for _, n := range nodes {
		g.counts.jumps.Add(1)
		check(t, n.clock.Set(to))
	}
}

// cutLog simulates a power failure: the end of the append-only file never reached the disk.
func (n *tortureNode) cutLog(t *testing.T, random *rand.Rand) bool {
	files, err := filepath.Glob(filepath.Join(n.dir, "appendonlydir", "*.incr.aof"))
	if err != nil || len(files) == 0 {
		return false
	}
	slices.SortFunc(files, func(a, b string) int { return len(a) - len(b) + strings.Compare(a, b) })
	info, err := os.Stat(files[len(files)-1])
	if err != nil || info.Size() == 0 {
		return false
	}
	keep := max(0, info.Size()-random.Int64N(8<<10))
	if random.IntN(3) == 0 {
		keep = random.Int64N(info.Size())
	}
	check(t, os.Truncate(files[len(files)-1], keep))
	return true
}

// stopAndGo sometimes stops a client process for longer than its leases.
func (g *tortureGroup) stopAndGo(ctx context.Context, t *testing.T, p *tortureProcess, random *rand.Rand) {
	for acquired := int64(0); ; {
		rest(ctx, g.s.scaled(time.Duration(random.IntN(400))*time.Millisecond))
		if acquired = g.next(ctx, acquired); ctx.Err() != nil {
			return
		}
		g.counts.stops.Add(1)
		check(t, p.cmd.Process.Signal(syscall.SIGSTOP))
		rest(ctx, g.s.scaled(time.Duration(random.IntN(150))*time.Millisecond))
		check(t, p.cmd.Process.Signal(syscall.SIGCONT))
	}
}

// tortureProcess is a running client.
type tortureProcess struct {
	cmd    *exec.Cmd
	input  io.Closer
	output *bufio.Reader
	errors strings.Builder
	report clientReport
}

func startTortureClient(t *testing.T, c clientConfig) *tortureProcess {
	t.Helper()
	config, err := json.Marshal(c)
	must(t, err)
	p := &tortureProcess{cmd: exec.Command(os.Args[0])}
	p.cmd.Env = append(os.Environ(), asTortureClient+"="+string(config))
	p.cmd.Stderr = &p.errors
	p.input, err = p.cmd.StdinPipe()
	must(t, err)
	output, err := p.cmd.StdoutPipe()
	must(t, err)
	p.output = bufio.NewReader(output)
	must(t, p.cmd.Start())
	pid := p.cmd.Process.Pid
	must(t, child.Adopt(pid, syscall.SIGKILL)) // a stopped one would outlive the test
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		_ = p.cmd.Wait()
		child.Disown(pid)
	})
	return p
}

// says returns the client's next line of output.
func (p *tortureProcess) says(t *testing.T) string {
	t.Helper()
	line, err := p.output.ReadString('\n')
	if err != nil {
		_ = p.cmd.Wait()
		t.Fatalf("the client said %q (%v): %s", line, err, p.errors.String())
	}
	return strings.TrimSpace(line)
}

// end lets the client finish its current work, and reads its report.
func (p *tortureProcess) end(t *testing.T) {
	t.Helper()
	_ = p.input.Close()
	timer := time.AfterFunc(time.Minute, func() { _ = p.cmd.Process.Signal(syscall.SIGABRT) }) // shows where it hangs
	defer timer.Stop()
	text, err := io.ReadAll(p.output)
	must(t, err)
	if len(text) > 0 {
		must(t, json.Unmarshal(text, &p.report))
	}
	if err := p.cmd.Wait(); err != nil {
		t.Fatalf("a client ended with %v: %s", err, p.errors.String())
	}
}
