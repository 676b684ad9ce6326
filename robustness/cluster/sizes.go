package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/redis/go-redis/v9"
)

// Sizes samples the sizes that must not grow, by name: "gateway-1#3 goroutines" is that of gateway 1's third process.
// Units are fds, kB, threads, goroutines, sessions, locks, keys and files.
func (c *Cluster) Sizes(ctx context.Context) (sizes map[string]float64, err error) {
	sizes = map[string]float64{}
	note := func(name string, value float64, failed error) { sizes[name], err = value, errors.Join(err, failed) }
	process := func(name string, nth, pid int) {
		err = errors.Join(err, processSizes(sizes, fmt.Sprintf("%s#%d", name, nth), pid))
	}
	for _, n := range c.Nodes {
		process(n.Name, n.Pid(), n.Pid())
		var keys int64
		failed := n.ask(func(client *redis.Client) (err error) {
			keys, err = client.DBSize(ctx).Result()
			return err
		})
		note(n.Name+" keys", float64(keys), failed)
	}
	for _, p := range c.pg {
		process(p.Name, p.Pid(), p.Pid())
	}
	if c.Blobs != nil {
		process(c.Blobs.Name, c.Blobs.Pid(), c.Blobs.Pid())
	}
	for _, g := range c.Gateways {
		process(g.Name, g.Starts(), g.Pid())
		text, failed := g.served.Get(ctx, "/metrics")
		goroutines, also := numberAfter(text, "\ngo_goroutines ")
		note(fmt.Sprintf("%s#%d goroutines", g.Name, g.Starts()), goroutines, errors.Join(failed, also))
	}
	for _, k := range c.Clients() {
		if k.Alive() {
			process(k.Name, k.Starts(), k.Pid())
		}
	}
	count := func(from string) (float64, error) {
		return says[float64](ctx, c.Primary(), "SELECT count(*)::float8 FROM "+from)
	}
	for name, from := range map[string]string{
		"postgres sessions": "pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()",
		"postgres locks":    "pg_locks WHERE locktype = 'advisory'",
		"postgres prepared": "pg_prepared_xacts",
	} {
		n, failed := count(from)
		note(name, n, failed)
	}
	files, failed := countFiles(c.files)
	live, also := count("objects.blobs WHERE state = 'live'")
	note("blobs files", max(0, files-live), errors.Join(failed, also)) // files that no version references
	return sizes, err
}

// processSizes reads a process's descriptors, resident memory and threads.
func processSizes(sizes map[string]float64, name string, pid int) error {
	fds, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	text, also := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err = errors.Join(err, also); err != nil {
		return err
	}
	memory, err := numberAfter(text, "\nVmRSS:")
	threads, also := numberAfter(text, "\nThreads:")
	sizes[name+" fds"], sizes[name+" kB"], sizes[name+" threads"] = float64(len(fds)), memory, threads
	return errors.Join(err, also)
}

// numberAfter reads the number behind its name.
func numberAfter(text []byte, name string) (n float64, err error) {
	_, rest, _ := strings.Cut(string(text), name)
	if _, err = fmt.Sscan(rest, &n); err != nil {
		err = fmt.Errorf("no number is called %q: %w", name, err)
	}
	return n, err
}

func countFiles(root string) (float64, error) {
	n := 0.0
	err := filepath.WalkDir(root, func(_ string, entry os.DirEntry, err error) error {
		if errors.Is(err, os.ErrNotExist) { // it was swept
			return nil
		}
		if err == nil && entry.Type().IsRegular() {
			n++
		}
		return err
	})
	return n, err
}
