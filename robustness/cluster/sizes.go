package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Sizes samples the sizes that must not grow, by name: "gateway-1#3 goroutines" is that of gateway 1's third process.
// Units are fds, kB, threads, goroutines, sessions, locks, keys and files.
func (c *Cluster) Sizes(ctx context.Context) (map[string]float64, error) {
	sizes := map[string]float64{}
	var errs []error
	for _, n := range c.Nodes {
		name := fmt.Sprintf("%s#%d", n.Name, n.server.Pid())
		errs = append(errs, processSizes(sizes, name, n.server.Pid()))
		keys, err := n.Keys(ctx)
		sizes[n.Name+" keys"], errs = float64(keys), append(errs, err)
	}
	for _, p := range c.pg {
		errs = append(errs, processSizes(sizes, fmt.Sprintf("%s#%d", p.Name, p.Pid()), p.Pid()))
	}
	if c.Blobs != nil {
		errs = append(errs, processSizes(sizes, fmt.Sprintf("%s#%d", c.Blobs.Name, c.Blobs.Pid()), c.Blobs.Pid()))
	}
	for _, g := range c.Gateways {
		name := fmt.Sprintf("%s#%d", g.Name, g.Starts())
		errs = append(errs, processSizes(sizes, name, g.Pid()), g.goroutines(ctx, sizes, name))
	}
	for _, k := range c.Clients() {
		if k.Alive() {
			errs = append(errs, processSizes(sizes, fmt.Sprintf("%s#%d", k.Name, len(k.Histories())), k.Pid()))
		}
	}
	for name, from := range map[string]string{
		"postgres sessions": "pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()",
		"postgres locks":    "pg_locks WHERE locktype = 'advisory'",
		"postgres prepared": "pg_prepared_xacts",
	} {
		sql := "SELECT count(*)::float8 FROM " + from
		value, err := says[float64](ctx, c.Primary(), sql)
		sizes[name], errs = value, append(errs, err)
	}
	files, err := countFiles(c.files)
	live, liveErr := says[float64](ctx, c.Primary(), "SELECT count(*)::float8 FROM objects.blobs WHERE state = 'live'")
	sizes["blobs files"], errs = max(0, files-live), append(errs, liveErr) // files that no version references
	return sizes, errors.Join(append(errs, err)...)
}

// processSizes reads a process's descriptors, resident memory and threads.
func processSizes(sizes map[string]float64, name string, pid int) error {
	fds, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		return err
	}
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return err
	}
	sizes[name+" fds"] = float64(len(fds))
	for line := range strings.Lines(string(text)) {
		field, value, _ := strings.Cut(line, ":")
		unit, wanted := map[string]string{"VmRSS": " kB", "Threads": " threads"}[field]
		if !wanted {
			continue
		}
		number, err := strconv.ParseFloat(strings.Fields(value)[0], 64)
		if err != nil {
			return err
		}
		sizes[name+unit] = number
	}
	return nil
}

func (g *Gateway) goroutines(ctx context.Context, sizes map[string]float64, name string) error {
	text, err := g.Metrics(ctx)
	if err != nil {
		return err
	}
	for line := range bytes.Lines(text) {
		if value, ok := bytes.CutPrefix(line, []byte("go_goroutines ")); ok {
			number, err := strconv.ParseFloat(string(bytes.TrimSpace(value)), 64)
			sizes[name+" goroutines"] = number
			return err
		}
	}
	return fmt.Errorf("%s tells no goroutines", g.Name)
}

// Metrics returns /metrics, without a relay.
func (g *Gateway) Metrics(ctx context.Context) ([]byte, error) { return g.get(ctx, "/metrics") }

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
