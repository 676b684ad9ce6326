package cluster

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/fencegate/fencegate/internal/child"
	"github.com/fencegate/fencegate/internal/testenv/clockshim"
	"github.com/fencegate/fencegate/robustness/client"
)

// Client is a client process.
type Client struct {
	Name   string // "client-7"
	Config client.Config

	cluster *Cluster
	clock   *clockshim.Clock
	talk    sync.Mutex // one order at a time

	mu        sync.Mutex
	cmd       *exec.Cmd
	in        io.WriteCloser
	answers   chan answer
	done      chan struct{} // closed at its end
	err       error         // how it ended, valid after done
	frozen    bool
	histories []string
}

type answer struct {
	report client.Report
	err    error
}

// ClientConfig is the configuration of client n: every address is one of its own relays. The caller sets surfaces and
// workers, and [Cluster.StartClient] the history.
func (c *Cluster) ClientConfig(n int, seed uint64) (client.Config, error) {
	name := fmt.Sprintf("client-%d", n)
	nodes, servers, err := c.ways(name)
	if err != nil {
		return client.Config{}, err
	}
	cfg := client.Config{
		Number: n, Seed: seed, Dir: filepath.Join(c.dir, name), MaxTTL: MaxTTL,
		Redis: nodes, Prefix: c.prefix,
		WriterURL: primaryOf(WriterLogin, servers), FenceURL: primaryOf(GatewayLogin, servers),
		Token: Token, Bucket: Bucket, OnceBucket: OnceBucket, Program: c.opts.Program, Python: c.opts.Python, PSQL: c.opts.PSQL,
	}
	for _, g := range c.Gateways {
		var at [3]string
		for i, port := range []struct{ name, addr string }{{"/api", g.API}, {"/pg", g.PG}, {"/s3", g.S3}} {
			link, err := c.Net.Between(name, g.Name+port.name, port.addr)
			if err != nil {
				return cfg, err
			}
			at[i] = link.Addr()
		}
		cfg.Gateways = append(cfg.Gateways, client.Gateway{
			API: "http://" + at[0], PGURL: address(WriterLogin, at[1]), S3: "http://" + at[2],
		})
	}
	return cfg, nil
}

// StartClient starts a client process with its own clock and folder.
func (c *Cluster) StartClient(ctx context.Context, cfg client.Config) (*Client, error) {
	if c.opts.Client == "" {
		return nil, errors.New("Options.Client is required for clients")
	}
	k := &Client{Name: fmt.Sprintf("client-%d", cfg.Number), Config: cfg, cluster: c}
	if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
		return nil, err
	}
	var err error
	if k.clock, err = (&clockshim.Clock{}).In(filepath.Join(cfg.Dir, "clock")); err != nil {
		return nil, err
	}
	if err := k.start(ctx); err != nil {
		return nil, errors.Join(err, k.clock.Close())
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.clients = append(c.clients, k)
	return k, nil
}

// Clients returns the clients in the order of their start.
func (c *Cluster) Clients() []*Client {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]*Client{}, c.clients...)
}

// start starts a process with its own history: PATH/history/client-7.1.jsonl is that of client 7's first one.
func (k *Client) start(context.Context) error {
	c := k.cluster
	c.mu.Lock()
	c.starts[k.Config.Number]++
	nth := c.starts[k.Config.Number]
	c.mu.Unlock()
	histories := filepath.Join(c.dir, "history")
	if err := os.MkdirAll(histories, 0o700); err != nil {
		return err
	}
	cfg := k.Config
	cfg.History = filepath.Join(histories, fmt.Sprintf("%s.%d.jsonl", k.Name, nth))
	cfg.Life = nth
	cfg.Seed += uint64(nth-1) << 32 // another process draws different numbers
	first, err := json.Marshal(cfg)
	if err != nil {
		return err
	}
	log, err := os.OpenFile(filepath.Join(cfg.Dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command(c.opts.Client, "client")
	cmd.Env, cmd.Dir, cmd.Stderr = append(os.Environ(), k.clock.Env()...), cfg.Dir, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // a terminal's Ctrl-C is for this process
	in, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	k.run(cmd, in, out, cfg.History)
	// The signal reaches the whole group, stopped processes included.
	if err := child.Adopt(-cmd.Process.Pid, syscall.SIGKILL); err != nil {
		return errors.Join(err, k.Kill())
	}
	_, err = in.Write(append(first, '\n'))
	return err
}

// run reads a process's output until it ends.
func (k *Client) run(cmd *exec.Cmd, in io.WriteCloser, out io.Reader, history string) {
	answers, done := make(chan answer, 16), make(chan struct{})
	k.mu.Lock()
	k.cmd, k.in, k.answers, k.done, k.err, k.frozen = cmd, in, answers, done, nil, false
	k.histories = append(k.histories, history)
	k.mu.Unlock()
	go func() {
		lines := bufio.NewReader(out)
		for {
			line, err := lines.ReadBytes('\n')
			if err != nil {
				break
			}
			a := answer{}
			if err := json.Unmarshal(line, &a.report); err != nil {
				a.err = fmt.Errorf("%s says %.200q: %w", k.Name, line, err)
			}
			select {
			case answers <- a:
			default: // more answers than orders
			}
		}
		err := cmd.Wait()
		child.Disown(-cmd.Process.Pid)
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // its children
		k.mu.Lock()
		if k.done == done {
			k.err = err
		}
		k.mu.Unlock()
		close(done)
	}()
}

// Order gives an order and waits for its report, at most for patience.
func (k *Client) Order(ctx context.Context, order client.Order, patience time.Duration) (client.Report, error) {
	k.talk.Lock()
	defer k.talk.Unlock()
	k.mu.Lock()
	in, answers, done := k.in, k.answers, k.done
	k.mu.Unlock()
	line, err := json.Marshal(order)
	if err != nil {
		return client.Report{}, err
	}
	for len(answers) > 0 { // answers to orders that were not waited for
		<-answers
	}
	if _, err := in.Write(append(line, '\n')); err != nil {
		return client.Report{}, fmt.Errorf("%s: %w", k.Name, err)
	}
	timer := time.NewTimer(patience)
	defer timer.Stop()
	for {
		select {
		case a := <-answers:
			if a.err == nil && a.report.Error != "" {
				a.err = fmt.Errorf("%s: %s", k.Name, a.report.Error)
			}
			if a.err == nil && a.report.Done != order.Do {
				continue // late, for an earlier order
			}
			return a.report, a.err
		case <-done:
			err := errors.Join(k.Err(), io.ErrUnexpectedEOF)
			return client.Report{}, fmt.Errorf("%s ended: %w%s", k.Name, err, lastLines(k.LogFile()))
		case <-timer.C:
			return client.Report{}, fmt.Errorf("%s does not answer %q within %v", k.Name, order.Do, patience)
		case <-ctx.Done():
			return client.Report{}, ctx.Err()
		}
	}
}
