//go:build unix

// Package s3posix runs versitygw's S3 server on a folder, for tests: a real S3
// service, in a process of its own that can be stopped in the middle.
//
//	func TestMain(m *testing.M) {
//		s3posix.RunIfAsked()
//		os.Exit(m.Run())
//	}
//	…
//	server := s3posix.Start(t)
package s3posix

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"

	"github.com/gofiber/fiber/v3"
	"github.com/versity/versitygw/auth"
	"github.com/versity/versitygw/backend/meta"
	"github.com/versity/versitygw/backend/posix"
	"github.com/versity/versitygw/s3api"
	"github.com/versity/versitygw/s3api/middlewares"

	"github.com/fencegate/fencegate/internal/child"
)

// What the server lets in.
const (
	Access = "upstream"
	Secret = "upstream-secret"
	Bucket = "blobs"

	variable     = "FENCEGATE_TEST_S3POSIX"
	announcement = "listening on "
)

// RunIfAsked is the server, in the process that [Start] starts. Elsewhere it does
// nothing. Call it first in TestMain.
func RunIfAsked() {
	folder, asked := os.LookupEnv(variable)
	if !asked {
		return
	}
	if err := run(folder); err != nil {
		fmt.Fprintln(os.Stderr, "s3posix:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

func run(folder string) error {
	data, sidecar := filepath.Join(folder, "data"), filepath.Join(folder, "meta")
	if err := errors.Join(os.MkdirAll(filepath.Join(data, Bucket), 0o700), os.MkdirAll(sidecar, 0o700)); err != nil {
		return err
	}
	attributes, err := meta.NewSideCar(sidecar)
	if err != nil {
		return err
	}
	back, err := posix.New(data, attributes, posix.PosixOpts{SideCarDir: sidecar})
	if err != nil {
		return err
	}
	root := middlewares.RootUserConfig{Access: Access, Secret: Secret}
	iam := auth.NewIAMServiceSingle(auth.Account{Access: Access, Secret: Secret, Role: auth.RoleAdmin})
	front, err := s3api.New(back, root, "us-east-1", iam, nil, nil, nil, nil, s3api.WithQuiet(), s3api.WithKeepAlive(), s3api.WithConcurrencyLimiter(4096, 1024))
	if err != nil {
		return err
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Println(announcement + ln.Addr().String())
	app := (*fiber.App)(reflect.ValueOf(front).Elem().FieldByName("app").UnsafePointer()) // it listens only on addresses that it opens itself
	return app.Listener(ln, fiber.ListenConfig{DisableStartupMessage: true})
}

// Server is a running server.
type Server struct {
	Addr   string // host:port
	Folder string // where its data are

	process *os.Process
}

// URL is its endpoint.
func (s *Server) URL() string { return "http://" + s.Addr }

// Freeze lets the server do nothing until Thaw.
func (s *Server) Freeze() error { return child.Freeze(s.process.Pid) }

// Thaw lets it go on.
func (s *Server) Thaw() error { return s.process.Signal(syscall.SIGCONT) }

// Start starts a server that ends with the test.
func Start(t *testing.T) *Server {
	t.Helper()
	folder := t.TempDir()
	cmd := exec.Command(os.Args[0]) //nolint:noctx,gosec // this program, and it ends with the test
	cmd.Env = append(os.Environ(), variable+"="+folder)
	cmd.Stderr = t.Output()
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		child.Disown(cmd.Process.Pid)
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	if err := child.Adopt(cmd.Process.Pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	for lines := bufio.NewScanner(out); lines.Scan(); {
		if addr, said := strings.CutPrefix(lines.Text(), announcement); said {
			return &Server{Addr: addr, Folder: folder, process: cmd.Process}
		}
	}
	t.Fatal("the S3 server did not start")
	return nil
}
