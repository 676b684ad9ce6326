//go:build unix

package s3posix

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/fencegate/fencegate/internal/child"
)

const (
	variable     = "FENCEGATE_TEST_S3POSIX"
	announcement = "listening on "
)

// RunIfAsked runs the server in a process that [Start] started. Otherwise it does nothing. Call it first in TestMain.
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
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Println(announcement + ln.Addr().String())
	return Serve(folder, ln)
}

// Server is a running server.
type Server struct {
	Addr   string // host:port
	Folder string // the server's folder

	process *os.Process
}

// URL is the server's endpoint.
func (s *Server) URL() string { return "http://" + s.Addr }

// Freeze stops the server until Thaw.
func (s *Server) Freeze() error { return child.Freeze(s.process.Pid) }

// Thaw resumes it.
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
