package run

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"

	_ "github.com/fencegate/fencegate/internal/testenv/clockshim/goclock" // this program is the clients', too
	"github.com/fencegate/fencegate/robustness/client"
	"github.com/fencegate/fencegate/robustness/cluster"
	"github.com/fencegate/fencegate/robustness/history"
	"github.com/fencegate/fencegate/robustness/judge"
	"github.com/fencegate/fencegate/robustness/machine"
)

// open starts the cluster and its clients.
func (p *player) open(ctx context.Context) (err error) {
	if p.dir, err = os.MkdirTemp("", "fencegate-robustness-"); err != nil {
		return err
	}
	if p.yard, err = machine.Watch(p.dir); err != nil {
		return err
	}
	opts, err := p.build(ctx)
	if err != nil {
		return err
	}
	if p.c, err = cluster.Start(ctx, opts); err != nil {
		return err
	}
	if p.operator, err = history.Append(filepath.Join(p.dir, "operator.jsonl")); err != nil {
		return err
	}
	p.read(filepath.Join(p.dir, "operator.jsonl"))
	ways := p.o.Gateways
	if p.o.Balancer {
		ways++
	}
	for i := range ways {
		if err := p.openProber(i); err != nil {
			return err
		}
	}
	for n := 1; n <= p.o.Clients; n++ {
		cfg, err := p.c.ClientConfig(n, p.o.Seed)
		if err != nil {
			return err
		}
		cfg.Surfaces, cfg.Workers, cfg.MaxTTL = p.surfaces(n), p.o.Workers, p.o.MaxTTL
		if _, err := p.c.StartClient(ctx, cfg); err != nil {
			return err
		}
	}
	return nil
}

// build builds the run's programs and SQL.
func (p *player) build(ctx context.Context) (cluster.Options, error) {
	opts := cluster.Options{
		PostgresLeases: p.o.PostgresLeases, Redis: p.o.Redis, Gateways: p.o.Gateways, Balancer: p.o.Balancer, Async: p.o.Async, Seed: p.o.Seed, Disk: 3 << 29, SQL: []string{judge.EffectsSQL},
		Python: "/usr/bin/python3",
	}
	var err error
	if opts.PSQL, err = exec.LookPath("psql"); err != nil {
		return opts, err
	}
	if p.o.guardedOnce() {
		opts.SQL = append(opts.SQL, judge.GuardedOnceSQL)
	}
	var changed map[string]string
	if m := p.o.Mutant; m != nil {
		statements, err := m.SQL(p.o.Root)
		if err != nil {
			return opts, err
		}
		opts.SQL = append(opts.SQL, statements...)
		if changed, err = m.Overlay(p.o.Root, p.dir); err != nil {
			return opts, err
		}
	}
	if opts.Program, err = cluster.Build(ctx, filepath.Join(p.o.Root, "cmd", "fencegate"), p.dir, changed); err != nil {
		return opts, err
	}
	if p.o.BlobS3 {
		server := filepath.Join(p.o.Root, "internal", "testenv", "s3posix", "s3server")
		if opts.BlobS3, err = cluster.Build(ctx, server, p.dir, nil); err != nil {
			return opts, err
		}
	}
	opts.Client = fmt.Sprintf("/proc/%d/exe", os.Getpid()) // this program, although its file may be replaced

	if len(changed) > 0 { // the clients use the product's packages, too
		opts.Client, err = cluster.Build(ctx, filepath.Join(p.o.Root, "robustness"), p.dir, changed)
	}
	return opts, err
}

// openProber creates the auditor's client for one gateway, the last one for the balancer.
func (p *player) openProber(gateway int) error {
	cfg, err := p.c.ClientConfig(0, p.o.Seed+uint64(gateway))
	if err != nil {
		return err
	}
	cfg.Surfaces, cfg.Life, cfg.Gateways = p.o.Surfaces, gateway+1, cfg.Gateways[gateway:gateway+1]
	cfg.Balancer = nil // whatever goes through it goes through its prober
	cfg.Dir = filepath.Join(p.dir, fmt.Sprint("audit-", gateway+1))
	if err := os.Mkdir(cfg.Dir, 0o700); err != nil {
		return err
	}
	cfg.History = filepath.Join(p.dir, fmt.Sprintf("audit-%d.jsonl", gateway+1))
	prober, err := client.NewProber(cfg)
	if err != nil {
		return err
	}
	p.probers = append(p.probers, prober)
	p.read(cfg.History)
	return nil
}

// surfaces returns a client's surfaces: half of the clients have all, the others four.
func (p *player) surfaces(n int) []string {
	if n%2 == 0 || len(p.o.Surfaces) <= 4 {
		return p.o.Surfaces
	}
	random := rand.New(rand.NewPCG(p.o.Seed, uint64(n)))
	own := slices.Clone(p.o.Surfaces)
	random.Shuffle(len(own), func(i, j int) { own[i], own[j] = own[j], own[i] })
	return own[:4]
}

func (p *player) read(path string) { p.readers[path] = &history.Reader{Path: path} }

func (p *player) close() (err error) {
	for _, prober := range p.probers {
		err = errors.Join(err, prober.Close())
	}
	if p.c != nil {
		err = errors.Join(err, p.c.Close())
	}
	if p.operator != nil {
		err = errors.Join(err, p.operator.Close())
	}
	if p.yard != nil {
		err = errors.Join(err, p.yard.Close())
	}
	if p.dir != "" {
		err = errors.Join(err, os.RemoveAll(p.dir))
	}
	return err
}
