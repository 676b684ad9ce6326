//go:build unix

// Package pgserver runs a private PostgreSQL cluster in a folder, for `fencegate dev` and for tests.
//
// The guarantee: [Start] returns only when this folder's server answers with the password in the folder. After any end
// of the last run (Ctrl-C, kill -9, a crash during initialization), the next Start recovers. Two processes never run
// the same folder, and the server does not outlive this process. It listens on loopback only, and the password is
// random, in a file that only the owner can read, never on a command line.
//
//	srv, err := pgserver.Start(ctx, pgserver.Config{Dir: "/home/me/.local/share/fencegate/postgresql"})
//	if err != nil {
//		return err // says what is missing and what to do
//	}
//	defer srv.Stop()
//	pool, err := pgxpool.New(ctx, srv.URL("postgres"))
//
// Started as root, it runs PostgreSQL as an unprivileged user, because PostgreSQL refuses to run as root.
package pgserver

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/fencegate/fencegate/internal/child"
)

// Superuser is the cluster's superuser.
const Superuser = "postgres"

// OldestMajor is the oldest supported version of PostgreSQL.
const OldestMajor = 14

// Config configures a cluster.
type Config struct {
	Dir       string            // required: the cluster's own folder; created if missing
	BinDir    string            // folder of postgres and initdb; default: found by [Find]
	Port      int               // on 127.0.0.1; default: the port of the last run if it is free, else any free one
	Fast      bool              // give up durability for speed (fsync=off …); for tests only
	Ephemeral bool              // remove Dir at Stop, and when this process dies
	Settings  map[string]string // further settings of postgresql.conf; never secrets
	Env       []string          // further environment of the server, as KEY=value
	Patience  time.Duration     // for starting, with recovery; default 60s
	Logger    *slog.Logger      // default: discards
}

// Server is a running cluster. Its methods are safe for concurrent use.
type Server struct {
	cfg      Config
	port     int
	password string
	user     *account
	proc     *child.Process
	lock     *os.File
}

// lockPatience is for our own process that was just forked: until it execs its program, it holds the released lock.
const lockPatience = time.Second

func lockWithin(f *os.File, patience time.Duration) error {
	for begun := time.Now(); ; <-time.After(10 * time.Millisecond) {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil || time.Since(begun) > patience {
			return err
		}
	}
}

// ErrInUse reports that another process runs the folder's cluster.
var ErrInUse = errors.New("another process runs the PostgreSQL of this folder")

// Start initializes a new folder, recovers an interrupted run, and starts the server. It returns when the server
// answers. The context bounds only the start.
func Start(ctx context.Context, cfg Config) (*Server, error) {
	s := &Server{cfg: cfg}
	if err := s.prepare(ctx); err != nil {
		return nil, fmt.Errorf("PostgreSQL in %s: %w", cfg.Dir, errors.Join(err, s.close()))
	}
	if err := s.start(ctx); err != nil {
		return nil, fmt.Errorf("PostgreSQL in %s: %w", cfg.Dir, errors.Join(err, s.close()))
	}
	return s, nil
}

// prepare prepares the folder so that postgres can start on it.
func (s *Server) prepare(ctx context.Context) (err error) {
	c := &s.cfg
	if c.Dir == "" {
		return errors.New("no folder given")
	}
	if c.Dir, err = filepath.Abs(c.Dir); err != nil {
		return err
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Patience == 0 {
		c.Patience = time.Minute
	}
	if s.user, err = unprivileged(); err != nil {
		return err
	}
	if err = s.claim(); err != nil {
		return err
	}
	if err = s.chooseBinaries(); err != nil {
		return err
	}
	if err = s.user.reaches(c.Dir); err != nil {
		return err
	}
	if err = s.user.reaches(c.BinDir); err != nil {
		return err
	}
	if err = s.stopOrphan(ctx); err != nil {
		return err
	}
	return s.initialize(ctx)
}

// claim creates the folder and takes its lock, which the kernel frees with this process.
func (s *Server) claim() error {
	if err := os.MkdirAll(s.cfg.Dir, 0o711); err != nil {
		return err
	}
	f, err := os.OpenFile(filepath.Join(s.cfg.Dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	if err := lockWithin(f, lockPatience); err != nil {
		return errors.Join(fmt.Errorf("%w: end it first, or choose another folder", ErrInUse), f.Close())
	}
	s.lock = f
	if s.cfg.Ephemeral {
		return child.RemoveAtDeath(s.cfg.Dir)
	}
	return nil
}

// chooseBinaries chooses binaries that fit the folder's version.
func (s *Server) chooseBinaries() error {
	want, err := clusterMajor(s.data())
	if err != nil {
		return err
	}
	if dir := s.cfg.BinDir; dir != "" {
		have, err := majorOf(dir)
		if err == nil && want != 0 && want != have {
			err = fmt.Errorf("the folder was made by PostgreSQL %d, but the binaries in %s are of %d: name those of %d, or choose another folder", want, dir, have, want)
		}
		return err
	}
	found, err := Find()
	if err != nil {
		return err
	}
	for _, in := range found {
		if want == 0 || in.Major == want {
			s.cfg.BinDir = in.BinDir
			return nil
		}
	}
	return fmt.Errorf("the folder was made by PostgreSQL %d, which this machine no longer has (found: %v): install it, or choose another folder", want, found)
}

// clusterMajor is the version that created a data folder; 0 if there is none yet.
func clusterMajor(data string) (int, error) {
	text, err := os.ReadFile(filepath.Join(data, "PG_VERSION"))
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	major, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return 0, fmt.Errorf("%s/PG_VERSION: %w", data, err)
	}
	return major, nil
}

func (s *Server) data() string { return filepath.Join(s.cfg.Dir, "data") }

// URL is the superuser's address of a database of the cluster. It holds the password.
func (s *Server) URL(database string) string {
	u := url.URL{
		Scheme: "postgres", User: url.UserPassword(Superuser, s.password), Host: s.Addr(),
		Path: "/" + database, RawQuery: "sslmode=disable",
	}
	return u.String()
}

// Addr is the server's host:port.
func (s *Server) Addr() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(s.port)) }

// Pid is the postmaster's process id.
func (s *Server) Pid() int { return s.proc.Pid() }

// BinDir is the folder of the server's binaries; psql is usually beside them.
func (s *Server) BinDir() string { return s.cfg.BinDir }

// Stop shuts the server down in order: running transactions are rolled back, and committed data is on disk. It returns
// when the server is gone, and may be called more than once.
func (s *Server) Stop() error {
	s.proc.Stop(20 * time.Second)
	return s.close()
}

// Kill ends the server like a crash and returns when it is gone. The next Start on the folder recovers.
func (s *Server) Kill() error {
	s.proc.Kill()
	return s.close()
}

func (s *Server) close() error {
	if s.lock == nil {
		return nil
	}
	var err error
	if s.cfg.Ephemeral {
		err = os.RemoveAll(s.cfg.Dir)
		child.Removed(s.cfg.Dir)
	}
	err = errors.Join(err, s.lock.Close())
	s.lock = nil
	return err
}
