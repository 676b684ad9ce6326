package cluster

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"regexp"
)

// Heal ends every fault: it opens relays, thaws and starts processes, corrects clocks and frees the disk. It does not
// wait for readiness, which a run measures.
func (c *Cluster) Heal(ctx context.Context) error {
	var errs []error
	c.Net.Heal()
	if c.Disk != nil {
		errs = append(errs, c.Disk.Free())
	}
	errs = append(errs, c.Blobs.heal(ctx))
	for _, n := range c.Nodes {
		errs = append(errs, n.heal(ctx))
	}
	c.failing.Lock()
	errs = append(errs, c.Primary().heal(ctx))
	if c.attached {
		errs = append(errs, c.Standby().heal(ctx))
	} else {
		errs = append(errs, c.repair(ctx))
	}
	c.failing.Unlock()
	for _, g := range c.Gateways {
		errs = append(errs, g.heal())
	}
	for _, k := range c.Clients() {
		errs = append(errs, k.heal())
	}
	return errors.Join(errs...)
}

var (
	fatal = regexp.MustCompile(`^(panic: |fatal error: |WARNING: DATA RACE|unexpected fault address)|level=ERROR.*panic|` +
		`http2?: panic serving`) // net/http recovered it
	worse = regexp.MustCompile(`PANIC: |TRAP: |was terminated by signal (6|11)`)
)

// Faulty returns log lines of gateways, clients and PostgreSQL since the last call that no fault excuses: panics, fatal
// errors of the Go runtime, data races, failed assertions. It also returns the unexpected ends of gateways.
func (c *Cluster) Faulty() ([]string, error) {
	var found []string
	var errs []error
	look := func(file string, pattern *regexp.Regexp) {
		lines, err := c.scan(file, pattern)
		found, errs = append(found, lines...), append(errs, err)
	}
	for _, g := range c.Gateways {
		look(g.LogFile, fatal)
		found = append(found, g.takeEndings()...)
	}
	if c.Blobs != nil {
		look(c.Blobs.LogFile, fatal)
	}
	for _, k := range c.Clients() {
		look(k.LogFile(), fatal)
	}
	for _, p := range c.pg {
		look(p.LogFile(), worse)
	}
	return found, errors.Join(errs...)
}

// scan returns a log's new lines that match.
func (c *Cluster) scan(path string, pattern *regexp.Regexp) ([]string, error) {
	file, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	offset := c.scanned[path]
	if info.Size() < offset { // the log was restarted
		offset = 0
	}
	if _, err := file.Seek(offset, io.SeekStart); err != nil {
		return nil, err
	}
	var found []string
	for in := bufio.NewReader(file); ; {
		line, err := in.ReadBytes('\n')
		if err != nil { // the last line is incomplete
			break
		}
		offset += int64(len(line))
		if pattern.Match(line) {
			found = append(found, path+": "+string(bytes.TrimSpace(line)))
		}
	}
	c.scanned[path] = offset
	return found, nil
}

func (g *Gateway) takeEndings() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	endings := g.endings
	g.endings = nil
	return endings
}
