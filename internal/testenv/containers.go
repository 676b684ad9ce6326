//go:build unix

package testenv

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/network"
	"github.com/moby/moby/client"
	"github.com/redis/go-redis/v9"
	"github.com/testcontainers/testcontainers-go"

	"github.com/fencegate/fencegate/internal/child"
	"github.com/fencegate/fencegate/internal/redisserver"
)

// box is a running container with one published port, which stays the same when the container is restarted.
type box struct {
	engine engine
	name   string
	addr   string
	made   testcontainers.Container
}

// attempts bounds how often another free port is tried for a container.
const attempts = 5

// runBox starts a container whose port is published on a free port of the host.
func (d engine) runBox(ctx context.Context, image, port string, opts ...testcontainers.ContainerCustomizer) (*box, error) {
	for n := 1; ; n++ {
		addr, err := redisserver.FreeAddr()
		if err != nil {
			return nil, err
		}
		_, hostPort, err := net.SplitHostPort(addr)
		if err != nil {
			return nil, err
		}
		b := &box{engine: d, name: "fencegate-test-" + unique(), addr: net.JoinHostPort(d.daemonHost, hostPort)}
		if err := b.guard(); err != nil {
			return nil, err
		}
		made, err := testcontainers.Run(ctx, image, append(slices.Clone(opts),
			testcontainers.WithName(b.name),
			testcontainers.WithExposedPorts(port),
			testcontainers.WithHostConfigModifier(func(h *container.HostConfig) {
				h.PortBindings = network.PortMap{network.MustParsePort(port): {{HostIP: d.publishOn(), HostPort: hostPort}}}
			}))...)
		if err == nil {
			b.made = made
			return b, nil
		}
		err = errors.Join(err, b.Remove())
		if n == attempts || ctx.Err() != nil {
			return nil, fmt.Errorf("container of %s: %w", image, err)
		}
	}
}

// publishOn is loopback, unless Docker runs on another machine.
func (d engine) publishOn() netip.Addr {
	if d.daemonHost == "localhost" || d.daemonHost == "127.0.0.1" {
		return netip.MustParseAddr("127.0.0.1")
	}
	return netip.IPv4Unspecified()
}

// guard has the container removed when this process dies. Without the docker command testcontainers' reaper does that.
func (b *box) guard() error {
	if !hasDockerCommand() {
		return nil
	}
	return child.RemoveContainerAtDeath(b.engine.Client().DaemonHost(), b.name)
}

func (b *box) Remove() error {
	ctx, cancel := context.WithTimeout(context.Background(), startPatience)
	defer cancel()
	_, err := b.engine.Client().ContainerRemove(ctx, b.name, client.ContainerRemoveOptions{Force: true, RemoveVolumes: true})
	if err != nil && b.made != nil {
		return fmt.Errorf("remove container %s: %w", b.name, err)
	}
	child.ContainerRemoved(b.name)
	return nil
}

// poll calls f until it returns nil or ctx ends.
func poll(ctx context.Context, f func(context.Context) error) error {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		err := f(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.Join(ctx.Err(), err)
		case <-tick.C:
		}
	}
}

// containerPostgres runs the cluster in a container.
func containerPostgres(ctx context.Context, d engine) (*cluster, error) {
	password := rand.Text()
	cmd := []string{"postgres", "-c", "fsync=off", "-c", "full_page_writes=off"}
	for _, name := range slices.Sorted(maps.Keys(serverSettings)) {
		cmd = append(cmd, "-c", name+"="+serverSettings[name])
	}
	b, err := d.runBox(ctx, postgresImage(), "5432/tcp",
		testcontainers.WithEnv(map[string]string{"POSTGRES_PASSWORD": password, "POSTGRES_INITDB_ARGS": "--no-sync"}),
		testcontainers.WithCmd(cmd...))
	if err != nil {
		return nil, err
	}
	atEnd(b.Remove)
	base := &url.URL{Scheme: "postgres", User: url.UserPassword("postgres", password), Host: b.addr, Path: "/postgres", RawQuery: "sslmode=disable"}
	err = poll(ctx, func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, askPatience)
		defer cancel()
		conn, err := pgx.Connect(ctx, base.String())
		if err != nil {
			return err
		}
		return conn.Close(ctx)
	})
	if err != nil {
		return nil, fmt.Errorf("PostgreSQL in a container of %s does not answer: %w", postgresImage(), err)
	}
	return &cluster{base: base}, nil
}

// redisBox is a Redis node in a container.
type redisBox struct{ *box }

var _ redisserver.Control = redisBox{}

func containerRedis(ctx context.Context, d engine, cfg redisserver.Config) (*redisserver.Server, error) {
	cmd := []string{"--save", "", "--protected-mode", "no", "--appendonly", "no"}
	if cfg.AppendOnly != redisserver.None {
		cmd = append(cmd, "--appendonly", "yes", "--appendfsync", string(cfg.AppendOnly))
	}
	b, err := d.runBox(ctx, redisImage(), "6379/tcp", testcontainers.WithCmd(append(cmd, cfg.Args...)...))
	if err != nil {
		return nil, err
	}
	if err := (redisBox{b}).answers(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("Redis in a container of %s does not answer: %w", redisImage(), err), b.Remove())
	}
	return redisserver.Under(b.addr, redisBox{b}), nil
}

func (b redisBox) answers(ctx context.Context) error {
	cl := redis.NewClient(&redis.Options{Addr: b.addr, MaxRetries: -1, DialTimeout: time.Second})
	defer func() { _ = cl.Close() }()
	return poll(ctx, func(ctx context.Context) error { return cl.Ping(ctx).Err() })
}

func (b redisBox) Start(ctx context.Context) error {
	if _, err := b.engine.Client().ContainerStart(ctx, b.name, client.ContainerStartOptions{}); err != nil {
		return err
	}
	return b.answers(ctx)
}

func (b redisBox) Kill() error {
	return b.control(func(ctx context.Context) error {
		state, err := b.engine.Client().ContainerInspect(ctx, b.name, client.ContainerInspectOptions{})
		if err != nil || !state.Container.State.Running {
			return err
		}
		if _, err = b.engine.Client().ContainerKill(ctx, b.name, client.ContainerKillOptions{Signal: "KILL"}); err != nil {
			return err
		}
		return poll(ctx, func(ctx context.Context) error {
			state, err := b.engine.Client().ContainerInspect(ctx, b.name, client.ContainerInspectOptions{})
			if err == nil && state.Container.State.Running {
				err = errors.New("still running")
			}
			return err
		})
	})
}

func (b redisBox) Freeze() error {
	return b.control(func(ctx context.Context) error {
		_, err := b.engine.Client().ContainerPause(ctx, b.name, client.ContainerPauseOptions{})
		return err
	})
}

// Thaw is no error for a node that is not frozen, as with a process.
func (b redisBox) Thaw() error {
	return b.control(func(ctx context.Context) error {
		state, err := b.engine.Client().ContainerInspect(ctx, b.name, client.ContainerInspectOptions{})
		if err != nil || !state.Container.State.Paused {
			return err
		}
		_, err = b.engine.Client().ContainerUnpause(ctx, b.name, client.ContainerUnpauseOptions{})
		return err
	})
}

func (b redisBox) Pid() int { return 0 }

func (b redisBox) control(f func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), startPatience)
	defer cancel()
	return f(ctx)
}
