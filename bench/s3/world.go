package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"time"

	"github.com/fencegate/fencegate/gateway/s3/credentials"
	"github.com/fencegate/fencegate/internal/child"
	"github.com/fencegate/fencegate/internal/redisserver"
	"github.com/fencegate/fencegate/internal/s3stack"
)

const bucket = "bench"

// contender is an S3 server in its own process.
type contender struct {
	*client

	name   string
	folder string // the folder of its objects
	pid    int
}

// world holds the servers.
type world struct {
	db         *s3stack.Database
	contenders []*contender
	children   []*child.Process
}

func start(ctx context.Context, p plan) (w *world, err error) {
	w = &world{}
	settings := map[string]string{"max_connections": "100", "shared_buffers": "256MB", "max_wal_size": "4GB", "jit": "off"}
	if p.socket {
		settings["unix_socket_directories"] = "." // in PostgreSQL's own folder
	}
	w.db, err = s3stack.StartDatabase(ctx, s3stack.DatabaseConfig{Parent: p.data, Settings: settings})
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, w.close())
		}
	}()
	if p.minio == "" {
		p.minio, _ = exec.LookPath("minio")
	}
	if p.minio == "" {
		fmt.Fprintln(os.Stderr, "bench-s3: there is no minio; it is left out")
	}
	for name, begin := range map[string]func(context.Context, *contender, string) error{"ours": w.ours(p.socket), "versitygw": w.posix, "minio": w.minio(p.minio)} {
		if len(p.only) > 0 && !slices.Contains(p.only, name) || name == "minio" && p.minio == "" {
			continue
		}
		addr, err := redisserver.FreeAddr()
		if err != nil {
			return w, err
		}
		one := &contender{name: name, folder: filepath.Join(w.db.Dir, name)}
		if err := os.Mkdir(one.folder, 0o700); err != nil {
			return w, err
		}
		one.client = newClient(addr, "access-"+rand.Text(), rand.Text())
		if err := begin(ctx, one, addr); err != nil {
			return w, fmt.Errorf("%s: %w", name, err)
		}
		w.contenders = append(w.contenders, one)
	}
	slices.SortFunc(w.contenders, func(a, b *contender) int { return slices.Index(names, a.name) - slices.Index(names, b.name) })
	return w, nil
}

var names = []string{"ours", "versitygw", "minio"}

// spawn starts a server and waits until it has the bucket.
func (w *world) spawn(ctx context.Context, one *contender, path string, args []string, env ...string) error {
	p, err := child.Start(child.Spec{Path: path, Args: args, Env: append(os.Environ(), env...), StopSignal: syscall.SIGINT})
	if err != nil {
		return err
	}
	w.children, one.pid = append(w.children, p), p.Pid()
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	for {
		status, _, err := one.send(ctx, http.MethodPut, "/"+bucket, nil, 0)
		if err == nil && status == http.StatusOK {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("it does not answer: %d, %w", status, errors.Join(err, ctx.Err()))
		case <-p.Done():
			return fmt.Errorf("it ended: %w", p.Err())
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// The environment variables with which this program runs as a server.
const (
	envAddr     = "BENCH_ADDR"
	envAccess   = "BENCH_ACCESS"
	envSecret   = "BENCH_SECRET"
	envPostgres = "BENCH_POSTGRES"
	envFolder   = "BENCH_FOLDER"
	envKey      = "BENCH_KEY"
	envProfile  = "BENCH_PROFILE"
)

func (w *world) self(ctx context.Context, one *contender, addr string, env ...string) error {
	path, err := os.Executable()
	if err != nil {
		return err
	}
	return w.spawn(ctx, one, path, []string{"-serve", one.name}, append(env, envAddr+"="+addr, envAccess+"="+one.access, envSecret+"="+one.secret, envFolder+"="+one.folder)...)
}

// ours creates a bucket that is one resource, and uses the credentials of its lease.
func (w *world) ours(socket bool) func(ctx context.Context, one *contender, addr string) error {
	address := w.db.URL() + "&pool_max_conns=20"
	if socket {
		address += "&host=" + url.QueryEscape(filepath.Join(w.db.Dir, "pg", "data"))
	}
	return func(ctx context.Context, one *contender, addr string) error { return w.oursAt(ctx, one, addr, address) }
}

func (w *world) oursAt(ctx context.Context, one *contender, addr, postgres string) error {
	key := make([]byte, 32)
	_, _ = rand.Read(key) // never fails
	master := hex.EncodeToString(key)
	if err := w.self(ctx, one, addr, envPostgres+"="+postgres, envKey+"="+master); err != nil {
		return err
	}
	if err := w.db.Arm(ctx, bucket, 7); err != nil {
		return err
	}
	keys, err := credentials.ParseKeyring("stack:" + master)
	if err != nil {
		return err
	}
	c, err := keys.Issue(bucket, 7, time.Now().Add(time.Hour), 0)
	one.access, one.secret, one.session = c.AccessKeyID, c.SecretAccessKey, c.SessionToken
	return err
}

func (w *world) posix(ctx context.Context, one *contender, addr string) error {
	return w.self(ctx, one, addr)
}

func (w *world) minio(path string) func(context.Context, *contender, string) error {
	return func(ctx context.Context, one *contender, addr string) error {
		return w.spawn(ctx, one, path, []string{"server", "--quiet", "--address", addr, "--console-address", "127.0.0.1:0", one.folder},
			"MINIO_ROOT_USER="+one.access, "MINIO_ROOT_PASSWORD="+one.secret, "MINIO_BROWSER=off", "MINIO_UPDATE=off", "MINIO_CALLHOME_ENABLE=off")
	}
}

func (w *world) close() error {
	for _, one := range w.contenders {
		one.close()
	}
	for _, p := range w.children {
		p.Stop(5 * time.Second)
	}
	return w.db.Close()
}

// memory is a process's resident memory and its highest, in MiB.
func memory(pid int) (now, peak float64, err error) {
	data, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	if err != nil {
		return 0, 0, err
	}
	for name, to := range map[string]*float64{"VmRSS:": &now, "VmHWM:": &peak} {
		kib, err := field(string(data), name)
		if err != nil {
			return 0, 0, err
		}
		*to = float64(kib) / 1024
	}
	return now, peak, nil
}
