package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencegate/fencegate/bench/internal/commit"
	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/internal/child"
)

// sideNames are the databases of a comparison, each with the SQL of one program. The second one of the base shows the noise.
var sideNames = []string{"base", "tree", "again"}

// runAgainstBase measures what an operation costs the server's session, with the SQL of the commit and of the tree:
// three databases of one server take turns, one client at a time.
func (p plan) runAgainstBase(ctx context.Context) (met bool, err error) {
	dir, err := os.MkdirTemp("", "bench-fence-base-")
	if err != nil {
		return false, err
	}
	if err := child.RemoveAtDeath(dir); err != nil {
		return false, err
	}
	defer func() {
		err = errors.Join(err, os.RemoveAll(dir))
		child.Removed(dir)
	}()
	old, tree, err := commit.Build(ctx, dir, p.base)
	if err != nil {
		return false, err
	}
	w, err := start(ctx, p.data, 1)
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, w.close()) }()
	var sides []*world
	defer func() {
		for _, s := range sides {
			err = errors.Join(err, s.admin.Close(context.WithoutCancel(ctx)))
		}
	}()
	for i, binary := range []string{old, tree, old} {
		s, err := w.beside(ctx, sideNames[i], 1, func(address string) error {
			up := exec.CommandContext(ctx, binary, "migrate", "up")
			up.Env = append(os.Environ(), "FENCEGATE_POSTGRES_URL="+address)
			if out, err := up.CombinedOutput(); err != nil {
				return fmt.Errorf("migrate up: %w: %s", err, out)
			}
			return nil
		})
		if s != nil {
			sides = append(sides, s)
		}
		if err != nil {
			return false, err
		}
	}
	fmt.Printf("%-7s %-12s %14s %14s   %s\n", "part", "contender", "base, µs", "tree, µs", "tree/base (range of rounds); base/base")
	for _, part := range p.parts {
		if err := p.partAgainstBase(ctx, sides, part); err != nil {
			return false, fmt.Errorf("%s: %w", part, err)
		}
	}
	return true, nil
}

// inBase are the contenders of a comparison; the others do not depend on fencegate's SQL.
var inBase = []string{"unfenced", "constant", "under", "per-row", "in-tx", "arm"}

func (p plan) partAgainstBase(ctx context.Context, sides []*world, part string) error {
	ops := map[string]int{"insert": 1000, "tx": 200, "arm": 1000}[part]
	if ops == 0 {
		return nil // not compared
	}
	var contenders [][]contender
	var clients []*client
	for _, s := range sides {
		all, end, err := s.clients(ctx, 1)
		if err != nil {
			return err
		}
		defer end()
		clients = append(clients, all[0])
		mine, err := s.contendersOf(ctx, part)
		if err != nil {
			return err
		}
		contenders = append(contenders, slices.DeleteFunc(mine, func(c contender) bool {
			return !slices.Contains(inBase, c.name) || len(p.only) > 0 && !slices.Contains(p.only, c.name)
		}))
	}
	for n, one := range contenders[0] {
		costs, err := p.inTurns(len(sides), func(side int) (time.Duration, error) { return clients[side].spend(ctx, contenders[side][n], ops) })
		if err != nil {
			return fmt.Errorf("%s: %w", one.name, err)
		}
		var trees, bases []float64
		for i := range costs[0] {
			trees, bases = append(trees, costs[1][i]/costs[0][i]), append(bases, costs[2][i]/costs[0][i])
		}
		for _, all := range [][]float64{costs[0], costs[1], trees, bases} {
			slices.Sort(all)
		}
		each := float64(ops) * float64(time.Microsecond)
		fmt.Printf("%-7s %-12s %14.1f %14.1f   %.3f (%.2f-%.2f); %.3f\n", part, one.name, median(costs[0])/each, median(costs[1])/each,
			median(trees), trees[0], trees[len(trees)-1], median(bases))
	}
	return nil
}

// inTurns measures each side once a round; each round begins with the next side. The first round warms up and does not count.
func (p plan) inTurns(sides int, measure func(side int) (time.Duration, error)) ([][]float64, error) {
	costs := make([][]float64, sides)
	for round := range p.rounds + 1 {
		for i := range sides {
			side := (i + round) % sides
			cost, err := measure(side)
			if err != nil {
				return nil, err
			}
			if round > 0 {
				costs[side] = append(costs[side], float64(cost))
			}
		}
	}
	return costs, nil
}

func (w *world) contendersOf(ctx context.Context, part string) ([]contender, error) {
	switch part {
	case "insert":
		return w.insertContenders(ctx, part)
	case "tx":
		return w.txContenders(ctx, part)
	default:
		token := 1
		return []contender{{name: "arm", op: func(ctx context.Context, c *client) error {
			if c.gateway == nil {
				conn, err := pgx.Connect(ctx, w.gateway.String())
				if err != nil {
					return err
				}
				c.gateway = conn
			}
			token++
			var armed bool
			err := c.gateway.QueryRow(ctx, sqlArm, "bench/arm", token, fence.NewSeal().Hash(), "bench").Scan(&armed)
			if err == nil && !armed {
				err = errors.New("the fence was not armed at once")
			}
			return err
		}}}, nil
	}
}

// spend lets a client do an operation so many times, and returns what its sessions on the server spent of a processor.
func (c *client) spend(ctx context.Context, one contender, ops int) (time.Duration, error) {
	if err := one.op(ctx, c); err != nil { // connects
		return 0, err
	}
	before, err := c.spent()
	if err != nil {
		return 0, err
	}
	for range ops {
		if err := one.op(ctx, c); err != nil {
			return 0, err
		}
	}
	after, err := c.spent()
	return after - before, err
}

// spent is the processor time of the client's sessions on the server. Linux only.
func (c *client) spent() (sum time.Duration, err error) {
	for _, conn := range c.sessions() {
		path := filepath.Join("/proc", strconv.FormatUint(uint64(conn.PgConn().PID()), 10), "schedstat")
		text, err := os.ReadFile(path)
		if err != nil {
			return 0, err
		}
		ns, err := strconv.ParseInt(strings.Fields(string(text))[0], 10, 64)
		if err != nil {
			return 0, fmt.Errorf("%s: %w", path, err)
		}
		sum += time.Duration(ns)
	}
	return sum, nil
}
