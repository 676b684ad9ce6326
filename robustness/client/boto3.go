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
	if e.cfg.Python == "" {
		return nil, errors.New("there is no Python")
	}
	if err := os.MkdirAll(e.cfg.Dir, 0o700); err != nil {
		return nil, err
	}
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
	if _, err := p.ask(ctx, pythonRequest{Do: "load"}, nil); err != nil { // it loads boto3
		return nil, err
	}
	return over((*env).lease, func(e *env, a ask, t *term) access {
		return &byPython{newObjects(e, a, t, nil), p}
	})(e)
}

// begin returns the running program, a number for a request, and where its answers come.
func (p *python) begin() (*program, chan pythonAnswer, int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.program == nil || p.program.ended(ended) {
		env := []string{"PATH=" + os.Getenv("PATH"), "HOME=" + p.dir, "AWS_EC2_METADATA_DISABLED=true"}
		started, err := startProgram(p.path, []string{"-I", "-u", "-c", boto3Script}, env)
		if err != nil {
			return nil, nil, 0, err
		}
		waiting := map[int]chan pythonAnswer{}
		p.program, p.waiting = started, waiting
		go func() {
			for line := range started.lines {
				var a pythonAnswer
				_ = json.Unmarshal([]byte(line), &a)
				p.mu.Lock()
				if answers := waiting[a.N]; answers != nil {
					answers <- a
				}
				p.mu.Unlock()
			}
		}()
	}
	p.last++
	p.waiting[p.last] = make(chan pythonAnswer, 2) // a pause and the end
	return p.program, p.waiting[p.last], p.last, nil
}

// ended is a context that has ended.
var ended = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()

// ask makes a request and waits for its answer. If ctx ends first, the request is abandoned; it may have been carried
// out.
func (p *python) ask(ctx context.Context, r pythonRequest, pause func(context.Context)) (pythonAnswer, error) {
	program, answers, n, err := p.begin()
	if err != nil {
		return pythonAnswer{}, err
	}
	defer func() {
		p.mu.Lock()
		delete(p.waiting, n)
		p.mu.Unlock()
	}()
	send := func(r pythonRequest) error {
		r.N = n
		line, _ := json.Marshal(r) //nolint:gosec // credentials of a lease, for a pipe to a child
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
			return pythonAnswer{}, fmt.Errorf("the Python process ended: %s", program.said())
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

// request asks for one call at a gateway. The next goes to another one.
func (h *byPython) request(ctx context.Context, r pythonRequest, register string) (_ pythonRequest, err error) {
	if err := h.prepare(ctx); err != nil {
		return r, err
	}
	bucket, key := place(register)
	file, err := os.CreateTemp(h.python.dir, "boto3-")
	if err != nil {
		return r, err
	}
	r.Endpoint, r.Region, r.Bucket, r.Key, r.File = h.env.cfg.Gateways[h.at].S3, h.creds.Region, *bucket, *key, file.Name()
	r.AccessKeyID, r.SecretAccessKey, r.SessionToken = h.creds.AccessKeyID, h.creds.SecretAccessKey, h.creds.SessionToken
	h.at = (h.at + 1) % len(h.clients)
	return r, file.Close()
}

// write uses put_object, sometimes with a pause in the middle of the body, or the transfer manager's upload_file.
func (h *byPython) write(ctx context.Context, w write) error {
	dice := h.env.dice
	r, err := h.request(ctx, pythonRequest{Do: "put", Op: w.set[0].value, Pause: dice.chance(2)}, w.set[0].register)
	defer os.Remove(r.File)
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
	if dice.chance(4) {
		r.Do, r.Pause = "upload", false
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
	r, err := h.request(ctx, pythonRequest{Do: "get"}, register)
	defer os.Remove(r.File)
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
