package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/fencegate/fencegate/gateway/objects"
	"github.com/fencegate/fencegate/gateway/s3/credentials"
	"github.com/fencegate/fencegate/internal/s3stack"
)

// lateCase is a call of boto3 whose first attempt reaches the server
// after its retry and a newer upload of the same key were answered.
type lateCase struct{ mode, method string }

var lateCases = []lateCase{{"legacy", "PUT"}, {"legacy", "DELETE"}, {"standard", "PUT"}, {"standard", "DELETE"}}

// runLate counts the cases in which the late attempt changed the object, and boto3's wrong results for a bucket whose
// objects are written once. A missing boto3 is a failure only if needed is set.
func runLate(ctx context.Context, needed bool) (wrong int, err error) {
	if out, err := exec.CommandContext(ctx, "/usr/bin/python3", "-c", "import boto3").CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "conformance-s3: boto3 is not on this machine: %s\n", out)
		if needed {
			wrong++
		}
		return wrong, nil
	}
	w, err := start(ctx)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, w.close()) }()
	srv, err := w.server(ctx, objects.BucketRule())
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, srv.Close()) }()
	presented, err := w.grants(ctx, srv)
	if err != nil {
		return 0, err
	}
	for _, c := range lateCases {
		err := c.run(ctx, srv, presented["current"])
		outcome := "the newer object stays"
		if err != nil {
			outcome = err.Error()
			wrong++
		}
		fmt.Printf("boto3, %s retries, late %s: %s\n", c.mode, c.method, outcome)
	}
	once, err := w.runOnce(ctx, srv)
	return wrong + once, err
}

// run exchanges lines with clients/late_boto3.py: it receives "answered" when the retry and the newer upload were
// answered, sends "late", and receives what the script then reads.
func (c lateCase) run(ctx context.Context, srv *s3stack.Server, keys credentials.Credentials) (err error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	r, err := startRelay(srv.Addr, c.method)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	cmd := exec.CommandContext(ctx, "/usr/bin/python3", "clients/late_boto3.py", c.method)
	cmd.Env = append(clientEnv(r.addr, "late-"+c.mode+"-"+c.method+"/", keys), "AWS_RETRY_MODE="+c.mode, "DIRECT="+srv.Addr)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, cmd.Wait()) }()
	defer func() { _ = in.Close() }()
	lines := bufio.NewScanner(out)
	if !lines.Scan() || lines.Text() != "answered" {
		return fmt.Errorf("boto3 said %q", lines.Text())
	}
	status, err := r.deliver()
	if err != nil {
		return err
	}
	if _, err := io.WriteString(in, "late\n"); err != nil {
		return err
	}
	lines.Scan()
	if text := lines.Text(); text != "newer" {
		return fmt.Errorf("the object holds %q after a late attempt that got %d", strings.TrimSpace(text), status)
	}
	return nil
}
