package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"time"

	"github.com/jackc/pgx/v5"
)

// Heal ends every fault: it opens relays, thaws and starts processes, corrects clocks and frees the disk. It does not
// wait for readiness, which a run measures.
func (c *Cluster) Heal(ctx context.Context) error {
	c.Net.Heal()
	var errs []error
	if c.Blobs != nil {
		errs = append(errs, c.Blobs.heal(ctx))
	}
	if c.Disk != nil {
		errs = append(errs, c.Disk.Free())
	}
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
		errs = append(errs, g.heal(ctx))
	}
	for _, k := range c.Clients() {
		errs = append(errs, k.heal(ctx))
	}
	return errors.Join(errs...)
}

var (
	fatal = regexp.MustCompile(`^(panic: |fatal error: |unexpected fault address)|level=ERROR.*panic|` +
		`http2?: panic serving`) // net/http recovered it
	worse = regexp.MustCompile(`PANIC: |TRAP: |was terminated by signal (6|11)`)
)

// Faulty returns log lines of gateways, clients and PostgreSQL since the last call that no fault excuses: panics, fatal
// errors of the Go runtime, failed assertions. It also returns the ends of processes that nobody ended, although
// they were started again since.
func (c *Cluster) Faulty() (found []string, err error) {
	look := func(file string, pattern *regexp.Regexp) {
		lines, failed := c.scan(file, pattern)
		found, err = append(found, lines...), errors.Join(err, failed)
	}
	for _, n := range c.Nodes {
		found = append(found, n.takeEndings()...)
	}
	for _, g := range c.Gateways {
		look(g.LogFile, fatal)
		found = append(found, g.takeEndings()...)
	}
	if c.haproxy != nil && c.haproxy.Signal(0) != nil {
		found = append(found, fmt.Sprintf("HAProxy ended by itself: %v", c.haproxy.Err()))
	}
	if c.Blobs != nil {
		look(c.Blobs.LogFile, fatal)
		found = append(found, c.Blobs.takeEndings()...)
	}
	for _, k := range c.Clients() {
		look(k.LogFile, fatal)
		found = append(found, k.takeEndings()...)
	}
	for _, p := range c.pg {
		look(p.LogFile(), worse)
		found = append(found, p.takeFaulty()...)
	}
	return found, err
}

// scan returns a log's new lines that match.
func (c *Cluster) scan(path string, pattern *regexp.Regexp) (found []string, err error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	from := c.scanned[path]
	if len(text) < from { // the log was restarted
		from = 0
	}
	text = text[from:]
	text = text[:bytes.LastIndexByte(text, '\n')+1] // the last line is incomplete
	for line := range bytes.Lines(text) {
		if pattern.Match(line) {
			found = append(found, path+": "+string(bytes.TrimSpace(line)))
		}
	}
	c.scanned[path] = from + len(text)
	return found, err
}

// Earlier rounds' objects stop being current, as with a deletion, except for those that are written once. Neither the
// fence nor the judge is involved.
const retireObjects = `SET LOCAL lock_timeout = '20s';
ALTER TABLE objects.pointers DISABLE TRIGGER judged;
CREATE TEMPORARY TABLE gone ON COMMIT DROP AS SELECT bucket, version FROM objects.pointers WHERE bucket = '` + Bucket + `';
DELETE FROM objects.pointers WHERE bucket = '` + Bucket + `';
DO $$ BEGIN PERFORM objects.retire(g.bucket, g.version) FROM gone g; END $$;
ALTER TABLE objects.pointers ENABLE ALWAYS TRIGGER judged;`

// Tidy sweeps once, so that only blobs that no sweep removes remain of a round. If less than two thirds of the disk are
// free, it makes room for another round: it deletes them with their bytes. Nothing is written during Tidy.
func (c *Cluster) Tidy(ctx context.Context) error {
	if roomy, err := c.sweep(ctx); roomy || err != nil {
		return err
	}
	err := c.transact(ctx, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, retireObjects)
		return err
	})
	if err != nil {
		return err
	}
	tick := time.NewTicker(2 * time.Second) // longer than the age
	defer tick.Stop()
	for range 5 { // after a failover every age restarts with the first sweep
		if roomy, err := c.sweep(ctx); roomy || err != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// sweep reports whether there is room for another round.
func (c *Cluster) sweep(ctx context.Context) (roomy bool, err error) {
	// A standby that is promoted later must not reference the swept blobs.
	if err := c.CaughtUp(ctx); err != nil {
		return false, err
	}
	const age = "1s"
	if _, err := c.Tool(ctx, "objects", "sweep",
		"--pending-age", age, "--superseded-age", age, "--shorten-grace", "--unknown", "--unknown-age", age); err != nil || c.Disk == nil {
		return true, err
	}
	left, err := c.Disk.Left()
	return left >= c.opts.Disk*2/3, err
}
