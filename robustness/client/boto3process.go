package client

import (
	"bufio"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/fencegate/fencegate/internal/child"
	"github.com/fencegate/fencegate/robustness/history"
)

//go:embed boto3_client.py
var boto3Script string

// The protocol of boto3_client.py.
type (
	pythonRequest struct {
		N               int    `json:"n"`
		Do              string `json:"do,omitempty"`
		Endpoint        string `json:"endpoint,omitempty"`
		Region          string `json:"region,omitempty"`
		AccessKeyID     string `json:"access_key_id,omitempty"`
		SecretAccessKey string `json:"secret_access_key,omitempty"`
		SessionToken    string `json:"session_token,omitempty"`
		Bucket          string `json:"bucket,omitempty"`
		Key             string `json:"key,omitempty"`
		File            string `json:"file,omitempty"`
		Op              string `json:"op,omitempty"`
		Pause           bool   `json:"pause,omitempty"`
		Go              bool   `json:"go,omitempty"`
		Drop            bool   `json:"drop,omitempty"`
	}
	pythonAnswer struct {
		N        int           `json:"n"`
		Pause    bool          `json:"pause"`
		Op       string        `json:"op"`
		Attempts []pythonError `json:"attempts"`
		Failure  *pythonError  `json:"failure"`
	}
	pythonError struct {
		Status  int    `json:"status"`
		Code    string `json:"code"`
		Message string `json:"message"`
		Unsent  bool   `json:"unsent"`
	}
)

func (e pythonError) failure() *failure {
	f := &failure{outcome: s3Outcome(e.Status, e.Code, e.Message), code: e.Code}
	f.err = fmt.Errorf("boto3: %d %s: %s", e.Status, e.Code, e.Message)
	if e.Unsent {
		f.outcome, f.code = history.Failed, "unreachable"
	}
	return f
}

// failure classifies the call's error, together with its attempts: see attempts.
func (a pythonAnswer) failure() *failure {
	if a.Failure == nil {
		return nil
	}
	f := a.Failure.failure()
	for _, one := range a.Attempts {
		if one.Status/100 != 2 && one.failure().outcome == history.Unknown && !fenced(f.code) {
			f.outcome = history.Unknown
		}
	}
	return f
}

// python is a Python process that starts with the first request, and restarts with the next one after its end. It ends
// with its input, so also when this process is killed.
type python struct {
	path, dir string

	mu      sync.Mutex
	process *pythonProcess
	last    int
	closed  bool
}

type pythonProcess struct {
	cmd   *exec.Cmd
	in    io.WriteCloser
	ready chan pythonAnswer
	ended chan struct{}
	said  firstWords // its standard error

	writing sync.Mutex
	mu      sync.Mutex
	waiting map[int]chan pythonAnswer
}

// newPython starts a process, and waits until it has loaded boto3.
func newPython(path, dir string) (*python, error) {
	p := &python{path: path, dir: dir}
	err := os.MkdirAll(dir, 0o700)
	if err == nil {
		p.process, err = startPython(path, dir)
	}
	if err != nil {
		return nil, err
	}
	select {
	case <-p.process.ready:
		return p, nil
	case <-p.process.ended:
		return nil, p.process.lost()
	case <-time.After(time.Minute):
		p.close()
		return nil, errors.New("no boto3 after a minute")
	}
}

// file returns the name of a file in the client's folder, and a function that removes it.
func (p *python) file(name string) (path string, remove func()) {
	p.mu.Lock()
	p.last++
	path = filepath.Join(p.dir, "boto3-"+name+"-"+strconv.Itoa(p.last))
	p.mu.Unlock()
	return path, func() { _ = os.Remove(path) }
}

// ask makes a request and waits for its answer. If ctx ends first, the request is abandoned; it may have been carried
// out.
func (p *python) ask(ctx context.Context, r pythonRequest, pause func(context.Context)) (pythonAnswer, error) {
	process, answers, n, err := p.begin()
	if err != nil {
		return pythonAnswer{}, err
	}
	defer process.forget(n)
	r.N = n
	if err := process.send(r); err != nil {
		return pythonAnswer{}, err
	}
	for {
		select {
		case a := <-answers:
			if !a.Pause {
				return a, nil
			}
			if pause(ctx); ctx.Err() != nil {
				continue
			}
			if err := process.send(pythonRequest{N: n, Go: true}); err != nil {
				return a, err
			}
		case <-process.ended:
			return pythonAnswer{}, process.lost()
		case <-ctx.Done():
			_ = process.send(pythonRequest{N: n, Drop: true})
			return pythonAnswer{}, ctx.Err()
		}
	}
}

func (p *python) begin() (*pythonProcess, chan pythonAnswer, int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, nil, 0, errors.New("the client has ended")
	}
	if p.process == nil || p.process.over() {
		started, err := startPython(p.path, p.dir)
		if err != nil {
			return nil, nil, 0, err
		}
		p.process = started
	}
	p.last++
	answers := make(chan pythonAnswer, 2) // a pause and the end
	p.process.mu.Lock()
	p.process.waiting[p.last] = answers
	p.process.mu.Unlock()
	return p.process, answers, p.last, nil
}

func (p *python) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	if p.process != nil {
		_ = p.process.in.Close()
		_ = p.process.cmd.Process.Kill()
		<-p.process.ended
	}
}

func startPython(path, dir string) (*pythonProcess, error) {
	p := &pythonProcess{cmd: exec.Command(path, "-I", "-u", "-c", boto3Script), said: firstWords{limit: 4 << 10}}
	p.ready, p.ended = make(chan pythonAnswer, 1), make(chan struct{})
	p.waiting = map[int]chan pythonAnswer{0: p.ready}
	p.cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + dir, "AWS_EC2_METADATA_DISABLED=true"}
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C is for the client
	p.cmd.Stderr = &p.said
	var err error
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	// A stopped process does not notice the end of its input.
	if err := child.Adopt(p.cmd.Process.Pid, syscall.SIGKILL); err != nil {
		return nil, errors.Join(err, p.cmd.Process.Kill(), p.cmd.Wait())
	}
	go p.listen(out)
	return p, nil
}

// listen passes on the answers until the process ends.
func (p *pythonProcess) listen(out io.Reader) {
	defer close(p.ended)
	in := bufio.NewScanner(out)
	in.Buffer(nil, mebibyte)
	for in.Scan() {
		var a pythonAnswer
		if json.Unmarshal(in.Bytes(), &a) != nil {
			break
		}
		p.mu.Lock()
		if answers := p.waiting[a.N]; answers != nil {
			answers <- a
		}
		p.mu.Unlock()
	}
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait() // requests report how it ended
	child.Disown(p.cmd.Process.Pid)
}

func (p *pythonProcess) send(r pythonRequest) error {
	line, err := json.Marshal(r) //nolint:gosec // credentials of a lease, for a pipe to a child
	if err != nil {
		return err
	}
	p.writing.Lock()
	defer p.writing.Unlock()
	_, err = p.in.Write(append(line, '\n'))
	return err
}

func (p *pythonProcess) forget(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.waiting, n)
}

// lost returns how the process ended.
func (p *pythonProcess) lost() error {
	return fmt.Errorf("the Python process ended: %v: %s", p.cmd.ProcessState, p.said.text())
}

func (p *pythonProcess) over() bool {
	select {
	case <-p.ended:
		return true
	default:
		return false
	}
}
