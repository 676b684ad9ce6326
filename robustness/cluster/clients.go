package cluster

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/fencegate/fencegate/internal/child"
	"github.com/fencegate/fencegate/internal/stack"
	"github.com/fencegate/fencegate/robustness/client"
)

// Client is a client process.
type Client struct {
	process

	Config client.Config

	histories string     // the folder
	talk      sync.Mutex // one order at a time, and no order during a start
	in        *os.File
	reports   chan client.Report
}

// ClientConfig is the configuration of client n: every address is one of its own relays. The caller sets surfaces and
// workers, and [Cluster.StartClient] the history. A balancer is also the last of the gateways.
func (c *Cluster) ClientConfig(n int, seed uint64) (client.Config, error) {
	name := fmt.Sprintf("client-%d", n)
	nodes, servers, err := c.ways(name)
	if err != nil {
		return client.Config{}, err
	}
	cfg := client.Config{
		Number: n, Seed: seed, Dir: filepath.Join(c.dir, name), MaxTTL: MaxTTL, Redis: nodes, Prefix: c.prefix,
		WriterURL: address(stack.Writer, servers...), FenceURL: address(stack.Gateway, servers...),
		Token: Token, Bucket: Bucket, OnceBucket: OnceBucket, Program: c.opts.Program, Python: c.opts.Python, PSQL: c.opts.PSQL,
	}
	reach := func(to string, ports stack.Ports) error {
		own, err := c.portsOf(name, to, ports)
		cfg.Gateways = append(cfg.Gateways, client.Gateway{
			API: "http://" + own.API, PGURL: address(stack.Writer, own.PG), S3: "http://" + own.S3,
		})
		return err
	}
	for _, g := range c.Gateways {
		if err := reach(g.Name, g.Ports); err != nil {
			return cfg, err
		}
	}
	if c.balancer != nil {
		err = reach("balancer", *c.balancer)
		cfg.Balancer = &cfg.Gateways[len(c.Gateways)]
	}
	return cfg, err
}

// StartClient starts a client process with its own clock and folder.
func (c *Cluster) StartClient(_ context.Context, cfg client.Config) (*Client, error) {
	if c.opts.Client == "" {
		return nil, errors.New("Options.Client is required for clients")
	}
	k := &Client{Config: cfg, histories: filepath.Join(c.dir, "history")}
	if err := os.MkdirAll(k.histories, 0o700); err != nil {
		return nil, err
	}
	name := fmt.Sprintf("client-%d", cfg.Number)
	if err := c.prepare(&k.process, name, ownClock, child.Spec{Path: c.opts.Client, Args: []string{"client"}}); err != nil {
		return nil, err
	}
	c.stack.AtClose(k.hangUp)
	if err := k.launch(); err != nil {
		return nil, err
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

func (k *Client) history(nth int) string {
	return filepath.Join(k.histories, fmt.Sprintf("%s.%d.jsonl", k.Name, nth))
}

// Histories returns the files that its processes wrote, in order: PATH/history/client-7.1.jsonl is that of client 7's
// first one.
func (k *Client) Histories() (files []string) {
	for n := range k.Starts() {
		files = append(files, k.history(n+1))
	}
	return files
}

// launch starts a process with its own history.
func (k *Client) launch() error {
	theirs, in, err := os.Pipe()
	if err != nil {
		return err
	}
	defer theirs.Close()
	out, theirOut, err := os.Pipe()
	if err != nil {
		return errors.Join(err, in.Close())
	}
	defer theirOut.Close()
	if _, err := k.start(theirs, theirOut); err != nil {
		return errors.Join(err, in.Close(), out.Close())
	}
	k.in, k.reports = in, make(chan client.Report, 16)
	go k.listen(out, k.reports)
	cfg := k.Config
	cfg.Life = k.Starts()
	cfg.History = k.history(cfg.Life)
	cfg.Seed += uint64(cfg.Life-1) << 32 // another process draws different numbers
	return json.NewEncoder(in).Encode(cfg)
}

// listen reads a process's reports until it ends.
func (k *Client) listen(out *os.File, reports chan<- client.Report) {
	defer out.Close()
	for lines := bufio.NewReader(out); ; {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return
		}
		var report client.Report
		if err := json.Unmarshal(line, &report); err != nil {
			report.Error = fmt.Sprintf("it says %.200q: %v", line, err)
		}
		select {
		case reports <- report:
		default: // more than orders
		}
	}
}

// ErrNoAnswer reports that a client did not answer an order in time.
var ErrNoAnswer = errors.New("no answer")

// Order gives an order and waits for its report, at most for patience.
func (k *Client) Order(ctx context.Context, order client.Order, patience time.Duration) (report client.Report, err error) {
	k.talk.Lock()
	defer k.talk.Unlock()
	ctx, cancel := context.WithTimeoutCause(ctx, patience, ErrNoAnswer)
	defer cancel()
	proc := k.last()
	for len(k.reports) > 0 { // of orders that were not waited for
		<-k.reports
	}
	if err := json.NewEncoder(k.in).Encode(order); err != nil {
		return report, fmt.Errorf("%s: %w", k.Name, err)
	}
	for report.Done != order.Do && report.Error == "" { // a late one is for an earlier order
		select {
		case report = <-k.reports:
		case <-proc.Done():
			return report, fmt.Errorf("%s ended: %w%s", k.Name, errors.Join(proc.Err(), io.ErrUnexpectedEOF), lastLines(k.LogFile))
		case <-ctx.Done():
			return report, fmt.Errorf("%s: %q: %w within %v", k.Name, order.Do, context.Cause(ctx), patience)
		}
	}
	if report.Error != "" {
		err = fmt.Errorf("%s: %s", k.Name, report.Error)
	}
	return report, err
}

// Restart kills the process if it runs, starts another with the same number and its own history, and gives it an order.
func (k *Client) Restart(ctx context.Context, work client.Order) error {
	if err := k.Kill(); err != nil { // an order that it does not answer fails then
		return err
	}
	if err := k.again(); err != nil {
		return err
	}
	_, err := k.Order(ctx, work, 30*time.Second)
	return err
}

func (k *Client) again() error {
	k.talk.Lock()
	defer k.talk.Unlock()
	if err := k.hangUp(); err != nil {
		return err
	}
	return k.launch()
}

// Number is the client's number.
func (k *Client) Number() int { return k.Config.Number }

func (k *Client) hangUp() error {
	if k.in == nil {
		return nil
	}
	err := k.in.Close()
	k.in = nil
	return err
}
