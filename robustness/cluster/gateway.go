package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/fencegate/fencegate/internal/child"
	"github.com/fencegate/fencegate/internal/testenv/clockshim"
)

// Gateway is a fencegate serve with a supervisor, which restarts it 100 ms after any end.
type Gateway struct {
	Name        string // "gateway-1" …
	API, PG, S3 string // host:port, without a relay
	LogFile     string

	spec  child.Spec // without its log file
	clock *clockshim.Clock
	ended sync.WaitGroup
	quit  chan struct{}
	once  sync.Once

	mu       sync.Mutex
	proc     process
	starts   int
	absent   bool          // it stays down
	changed  chan struct{} // closed when absent ends
	endings  []string      // unexpected ends
	expected bool          // the next end is expected
}

// restartAfter is the supervisor's delay, as systemd's default.
const restartAfter = 100 * time.Millisecond

func (g *Gateway) supervise() error {
	g.quit, g.changed = make(chan struct{}), make(chan struct{})
	proc, err := g.start()
	if err != nil {
		return err
	}
	g.ended.Go(func() {
		for {
			select {
			case <-proc.Done():
			case <-g.quit:
				return
			}
			g.note(proc)
			if proc = g.again(); proc == nil {
				return
			}
		}
	})
	return nil
}

func (g *Gateway) start() (*child.Process, error) {
	proc, err := startLogged(g.spec, g.LogFile)
	if err != nil {
		return nil, err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.proc, g.expected = process{Process: proc}, false
	g.starts++
	return proc, nil
}

// note records how the process ended if that was not expected.
func (g *Gateway) note(proc *child.Process) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.expected {
		g.endings = append(g.endings, fmt.Sprintf("%s (process %d) ended by itself: %v", g.Name, proc.Pid(), proc.Err()))
	}
}

// again starts the gateway when it may run; nil: the supervision has ended.
func (g *Gateway) again() *child.Process {
	timer := time.NewTimer(restartAfter)
	defer timer.Stop()
	for {
		select {
		case <-g.quit:
			return nil
		case <-timer.C:
		}
		g.mu.Lock()
		absent, changed := g.absent, g.changed
		g.mu.Unlock()
		if absent {
			select {
			case <-g.quit:
				return nil
			case <-changed:
			}
		}
		if proc, err := g.start(); err == nil {
			return proc
		}
		timer.Reset(restartAfter)
	}
}

func (g *Gateway) process() *child.Process {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.proc.Process
}

// expect marks the process's end as expected.
func (g *Gateway) expect() *child.Process {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.expected = true
	return g.proc.Process
}

// Pid is the process's id, of the last one if none runs.
func (g *Gateway) Pid() int { return g.process().Pid() }

// Starts returns how often the gateway was started: one more than its restarts.
func (g *Gateway) Starts() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.starts
}

// Kill ends the process like kill -9. The supervisor restarts it.
func (g *Gateway) Kill() error {
	g.expect().Kill()
	return nil
}

// stopPatience is longer than serve's drain timeout.
const stopPatience = 15 * time.Second

// Stop sends SIGTERM, and returns when the process has ended. The supervisor restarts it.
func (g *Gateway) Stop(ctx context.Context) error {
	if err := g.Thaw(); err != nil {
		return err
	}
	proc := g.expect()
	_ = proc.Signal(syscall.SIGTERM) // it may have ended already
	ctx, cancel := context.WithTimeout(ctx, stopPatience)
	defer cancel()
	select {
	case <-proc.Done():
		return proc.Err()
	case <-ctx.Done():
		return fmt.Errorf("%s does not stop: %w", g.Name, ctx.Err())
	}
}

// Absent keeps the gateway down after its next end, until it is called with false.
func (g *Gateway) Absent(on bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case on && !g.absent:
		g.changed = make(chan struct{})
	case !on && g.absent:
		close(g.changed)
	}
	g.absent = on
}

// Freeze stops the process (SIGSTOP).
func (g *Gateway) Freeze() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.proc.freeze()
}

// Thaw resumes it.
func (g *Gateway) Thaw() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.proc.thaw()
}

// SetClock sets the offset of its wall clock. Its program must come from [Build].
func (g *Gateway) SetClock(d time.Duration) error { return g.clock.Set(d) }

// Ready requests /readyz, without a relay.
func (g *Gateway) Ready(ctx context.Context) error {
	_, err := g.get(ctx, "/readyz")
	return err
}

func (g *Gateway) get(ctx context.Context, path string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+g.API+path, nil)
	if err != nil {
		return nil, err
	}
	req.Close = true
	req.Header.Set("Authorization", "Bearer "+Token)
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(io.LimitReader(res.Body, 8<<20))
	if err == nil && res.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s%s: %s: %.300s", g.Name, path, res.Status, text)
	}
	return text, err
}

// heal starts or thaws the gateway and corrects its clock.
func (g *Gateway) heal() error {
	g.Absent(false)
	return errors.Join(g.clock.Set(0), g.Thaw())
}

func (g *Gateway) close() error {
	if g.quit == nil { // never started
		return g.clock.Close()
	}
	g.once.Do(func() { close(g.quit) })
	g.ended.Wait()
	g.expect().Kill()
	return g.clock.Close()
}

// newGateway creates a gateway with its own relays to PostgreSQL, Redis and an S3 service.
func (c *Cluster) newGateway(number int) (*Gateway, error) {
	g := &Gateway{Name: fmt.Sprintf("gateway-%d", number)}
	dir := filepath.Join(c.dir, g.Name)
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, err
	}
	g.LogFile = filepath.Join(dir, "log")
	for _, addr := range []*string{&g.API, &g.PG, &g.S3} {
		port, err := child.FreePort()
		if err != nil {
			return nil, err
		}
		*addr = fmt.Sprintf("127.0.0.1:%d", port)
	}
	nodes, servers, err := c.ways(g.Name)
	if err != nil {
		return nil, err
	}
	blobs, err := c.wayToBlobs(g.Name)
	if err != nil {
		return nil, err
	}
	if g.clock, err = (&clockshim.Clock{}).In(filepath.Join(dir, "clock")); err != nil {
		return nil, err
	}
	env := append(os.Environ(), "TZ=UTC",
		"FENCEGATE_POSTGRES_URL="+primaryOf(GatewayLogin, servers), "FENCEGATE_SQL_URL="+primaryOf(SQLLogin, servers))
	g.spec = child.Spec{
		Path: c.opts.Program, Args: c.serve(g, nodes, blobs), Dir: dir, DeathSignal: syscall.SIGKILL,
		Env: append(append(env, c.blobEnv...), g.clock.Env()...),
	}
	return g, nil
}
