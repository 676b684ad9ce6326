package client

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/fencegate/fencegate/robustness/history"
	"github.com/fencegate/fencegate/wire"
)

//go:embed boto3_client.py
var boto3Script string

// The protocol of boto3_client.py.
type (
	pythonRequest struct {
		N        int              `json:"n"`
		Do       string           `json:"do,omitempty"`
		Endpoint string           `json:"endpoint,omitempty"`
		Keys     wire.Credentials `json:"keys"`
		Bucket   *string          `json:"bucket,omitempty"`
		Key      *string          `json:"key,omitempty"`
		File     string           `json:"file,omitempty"`
		Op       string           `json:"op,omitempty"`
		Pause    bool             `json:"pause,omitempty"`
		Go       bool             `json:"go,omitempty"`
		Drop     bool             `json:"drop,omitempty"`
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
	f := failed(s3Outcome(e.Status, e.Code, e.Message), e.Code, fmt.Errorf("boto3: %d %s: %s", e.Status, e.Code, e.Message))
	if e.Unsent {
		f.outcome, f.code = history.Failed, "unreachable"
	}
	return f
}

// failure classifies the call's error, together with its attempts.
func (a pythonAnswer) failure() error {
	if a.Failure == nil {
		return nil
	}
	made := &attempts{made: 1} // at least
	for _, one := range a.Attempts {
		made.add(one.failure())
	}
	return made.failure(a.Failure.failure())
}

// python is a Python process, which the next request starts again after its end. It serves many requests at a time.
type python struct {
	path, dir string

	mu      sync.Mutex
	program *program
	waiting map[int]chan pythonAnswer // of the program, by request
	last    int
}

// openBoto3 makes the surface of a Python process that lives as long as the client: boto3 with its default settings.
func openBoto3(e *env) (acquire, error) {
	p := &python{path: e.cfg.Python, dir: e.cfg.Dir}
	e.closers = append(e.closers, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.program != nil {
			p.program.kill()
		}
	})
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if _, err := p.ask(ctx, pythonRequest{Do: "load"}, nil); err != nil { // answered once it has loaded boto3
		return nil, err
	}
	return over((*env).lease, func(e *env, a ask, t *term) access { return &byPython{newObjects(e, a, t, nil), p} })(e)
}

// begin returns the running program, a number for a request, and where its answers come.
func (p *python) begin() (*program, chan pythonAnswer, int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.program == nil || p.program.over() {
		env := []string{"PATH=" + os.Getenv("PATH"), "HOME=" + p.dir, "AWS_EC2_METADATA_DISABLED=true"}
		started, err := startProgram(p.path, []string{"-I", "-u", "-c", boto3Script}, env)
		if err != nil {
			return nil, nil, 0, err
		}
		p.program, p.waiting = started, map[int]chan pythonAnswer{}
		go p.listen(started.lines, p.waiting)
	}
	p.last++
	p.waiting[p.last] = make(chan pythonAnswer, 2) // a pause and the end
	return p.program, p.waiting[p.last], p.last, nil
}

func (p *python) listen(lines <-chan string, waiting map[int]chan pythonAnswer) {
	for line := range lines {
		var a pythonAnswer
		_ = json.Unmarshal([]byte(line), &a)
		p.mu.Lock()
		if answers := waiting[a.N]; answers != nil {
			answers <- a
		}
		p.mu.Unlock()
	}
}

// ask makes a request and waits for its answer. If ctx ends first, the request is abandoned; it may have been carried
// out.
func (p *python) ask(ctx context.Context, r pythonRequest, pause func(context.Context)) (pythonAnswer, error) {
	program, answers, n, err := p.begin()
	if err != nil {
		return pythonAnswer{}, err
	}
	defer func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.waiting, n)
	}()
	send := func(r pythonRequest) error {
		r.N = n
		line, _ := json.Marshal(r)
		_, err := program.in.Write(append(line, '\n'))
		return err
	}
	if err := send(r); err != nil {
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
			if err := send(pythonRequest{Go: true}); err != nil {
				return a, err
			}
		case <-program.gone:
			_, said := program.ended(ctx)
			return pythonAnswer{}, fmt.Errorf("the Python process ended: %s", said)
		case <-ctx.Done():
			_ = send(pythonRequest{Drop: true})
			return pythonAnswer{}, ctx.Err()
		}
	}
}

// byPython reads and writes with boto3, from and to files in the client's folder.
type byPython struct {
	*objects

	python *python
}

// request is for one call at a gateway, with a file of its own. The next goes to another gateway.
func (h *byPython) request(ctx context.Context, do, op, register string) (r pythonRequest, err error) {
	if err := h.prepare(ctx); err != nil {
		return r, err
	}
	file, err := os.CreateTemp(h.python.dir, "boto3-")
	if err != nil {
		return r, err
	}
	r = pythonRequest{Do: do, Op: op, Endpoint: h.env.cfg.Gateways[h.next(true)].S3, Keys: h.creds, File: file.Name()}
	r.Bucket, r.Key = place(register)
	return r, file.Close()
}

// write uses put_object, sometimes with a pause in the middle of the body, or the transfer manager's upload_file.
func (h *byPython) write(ctx context.Context, w write) error {
	dice := h.env.dice
	r, err := h.request(ctx, "put", w.set[0].value, w.set[0].register)
	defer func() { _ = os.Remove(r.File) }()
	size := 100 + dice.below(2*reserved)
	if dice.chance(4) {
		size = mebibyte + dice.below(6*mebibyte) // below the transfer manager's multipart threshold
	}
	if err == nil {
		err = os.WriteFile(r.File, bodyOf(w.set[0].value, size), 0o600)
	}
	if err != nil {
		return unwritten(err)
	}
	switch dice.below(8) {
	case 0, 1:
		r.Do = "upload"
	case 2, 3, 4:
		r.Pause = true
	}
	if !r.Pause {
		w.pause(ctx)
	}
	a, err := h.python.ask(ctx, r, w.pause)
	if err != nil {
		return err
	}
	return a.failure()
}

// read leaves the same objects to the other library sometimes.
func (h *byPython) read(ctx context.Context, register string) (saw, wrong string, err error) {
	if h.env.dice.chance(4) {
		return h.objects.read(ctx, register)
	}
	r, err := h.request(ctx, "get", "", register)
	defer func() { _ = os.Remove(r.File) }()
	if err != nil {
		return "", "", err
	}
	a, err := h.python.ask(ctx, r, nil)
	if err == nil {
		err = a.failure()
	}
	if f, ok := errors.AsType[*failure](err); ok && f.code == "NoSuchKey" {
		return "", "", nil
	} else if err != nil {
		return "", "", err
	}
	got, err := os.Open(r.File)
	if err != nil {
		return "", "", err
	}
	defer func() { _ = got.Close() }()
	return check(got, a.Op)
}
