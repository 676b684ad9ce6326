package client

import (
	"context"
	"errors"
	"io"
	"os"

	"github.com/fencegate/fencegate/robustness/history"
)

func init() { //nolint:gochecknoinits // a table of surfaces whose parts are in several files
	makers["s3-boto3"] = newBoto3
}

// boto3Surface is a lease by HTTP whose objects are written and read by a Python process that lives as long as the
// client: boto3 with its default settings.
type boto3Surface struct {
	*s3Surface

	python *python
}

func newBoto3(e *env) (surface, error) {
	if e.cfg.Python == "" {
		return nil, errors.New("there is no Python")
	}
	p, err := newPython(e.cfg.Python, e.cfg.Dir)
	if err != nil {
		return nil, err
	}
	s := &boto3Surface{newS3Surface(e, nil), p}
	s.put = s.write
	return s, nil
}

func (s *boto3Surface) acquire(ctx context.Context, a ask) (holding, error) {
	h, err := s.hold(ctx, a)
	if err != nil {
		return nil, err
	}
	return &boto3Holding{h, s.python}, nil
}

func (s *boto3Surface) close() {
	s.python.close()
	s.s3Surface.close()
}

// write puts the object from a file in the client's folder: with put_object, sometimes with a pause in the middle of
// the body, or with the transfer manager's upload_file.
func (s *boto3Surface) write(ctx context.Context, h *s3Holding, w write) error {
	if err := h.prepare(ctx); err != nil {
		return err
	}
	file, remove := s.python.file(w.id)
	defer remove()
	size := 100 + s.env.dice.below(2*reserved)
	if s.env.dice.chance(4) {
		size = mebibyte + s.env.dice.below(6*mebibyte) // below the transfer manager's multipart threshold
	}
	if err := store(file, bodyOf(w.id, size)); err != nil {
		return h.failed(err)
	}
	r := h.ask("put", file)
	r.Op, r.Pause = w.id, s.env.dice.chance(2)
	if s.env.dice.chance(4) {
		r.Do, r.Pause = "upload", false
	}
	if !r.Pause {
		w.pause(ctx)
	}
	a, err := s.python.ask(ctx, r, w.pause)
	if err != nil {
		return h.scrub(&failure{outcome: history.Unknown, err: err})
	}
	return h.scrub(a.failure())
}

// boto3Holding also reads with boto3.
type boto3Holding struct {
	*s3Holding

	python *python
}

func (h *boto3Holding) read(ctx context.Context, register string) (saw, wrong string, err error) {
	if h.s.env.dice.chance(4) { // sometimes the other library reads the same object
		return h.s3Holding.read(ctx, register)
	}
	if err := h.prepare(ctx); err != nil {
		return "", "", err
	}
	file, remove := h.python.file("read")
	defer remove()
	a, err := h.python.ask(ctx, h.ask("get", file), nil)
	if err != nil {
		return "", "", err
	}
	if f := a.failure(); f != nil {
		if f.code == "NoSuchKey" {
			return "", "", nil
		}
		return "", "", h.scrub(f)
	}
	got, err := os.Open(file)
	if err != nil {
		return "", "", err
	}
	defer func() { _ = got.Close() }()
	return check(got, a.Op)
}

// ask returns a request to Python. The next request uses another gateway.
func (h *s3Holding) ask(do, file string) pythonRequest {
	at := h.at
	h.at = (h.at + 1) % len(h.clients)
	return pythonRequest{
		Do: do, Endpoint: h.s.env.cfg.Gateways[at].S3, Region: h.creds.Region, AccessKeyID: h.creds.AccessKeyID,
		SecretAccessKey: h.creds.SecretAccessKey, SessionToken: h.creds.SessionToken,
		Bucket: h.s.env.cfg.Bucket, Key: h.key, File: file,
	}
}

func store(path string, from io.Reader) (err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	_, err = io.Copy(f, from)
	return err
}
