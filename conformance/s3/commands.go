package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/fencegate/fencegate/gateway/s3/credentials"
)

// boto3 is a process of clients/boto3_calls.py, which does what it reads. It repeats no request, unless its environment
// says otherwise.
type boto3 struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *json.Decoder
}

func newBoto3(ctx context.Context, addr string, c credentials.Credentials) (caller, error) {
	return startBoto3(ctx, addr, c, "AWS_MAX_ATTEMPTS=1")
}

func startBoto3(ctx context.Context, addr string, c credentials.Credentials, more ...string) (caller, error) {
	cmd := exec.CommandContext(ctx, "/usr/bin/python3", "clients/boto3_calls.py")
	cmd.Env, cmd.Stderr = append(clientEnv(addr, "", c), append(more, "ENDPOINT=http://"+addr)...), os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	return boto3{cmd, in, json.NewDecoder(out)}, cmd.Start()
}

func (b boto3) close() error { return errors.Join(b.in.Close(), b.cmd.Wait()) }

func (b boto3) call(_ context.Context, operation string, in input) (answer, error) {
	if operation == "PutChunked" || operation == "PutTrailing" || operation == "Upload" {
		return answer{}, errNotOffered
	}
	type line struct {
		input

		Body  []byte `json:",omitempty"`
		Pages bool   `json:",omitempty"`
	}
	var said struct {
		Answer       answer
		Code, Failed string
		Status       int
	}
	err := json.NewEncoder(b.in).Encode(map[string]any{"Operation": operation, "Input": line{in, []byte(in.Body), in.Pages}})
	if err == nil {
		err = b.out.Decode(&said)
	}
	switch {
	case err != nil:
		return answer{}, err
	case said.Failed != "":
		return answer{}, errors.New(said.Failed)
	case said.Code != "":
		return answer{}, &refusal{said.Status, said.Code}
	}
	return said.Answer, nil
}

// awscli is the AWS command line, as Debian has it: `aws s3api`, and `aws s3` for what that adds.
type awscli struct {
	dir string
	env []string
	url string
}

func newAWSCLI(_ context.Context, addr string, c credentials.Credentials) (caller, error) {
	dir, err := os.MkdirTemp("", "conformance-s3-")
	return awscli{dir, append(clientEnv(addr, "", c), "AWS_MAX_ATTEMPTS=1"), "http://" + addr}, err
}

func (a awscli) close() error { return os.RemoveAll(a.dir) }

var (
	capital    = regexp.MustCompile(`(\w)([A-Z])`)
	cliRefusal = regexp.MustCompile(`An error occurred \((\w+)\)`)
)

// hyphenated is a name of the API as the command line has it.
func hyphenated(name string) string { return strings.ToLower(capital.ReplaceAllString(name, "$1-$2")) }

func (a awscli) call(ctx context.Context, operation string, in input) (got answer, err error) {
	file := filepath.Join(a.dir, "file")
	if err := os.WriteFile(file, []byte(in.Body), 0o600); err != nil {
		return got, err
	}
	object := "s3://" + in.Bucket + "/" + in.Key
	var parameters map[string]json.RawMessage
	if err := translate(in, &parameters); err != nil {
		return got, err
	}
	words := []string{"s3api", hyphenated(operation)}
	for name, value := range parameters {
		var text string
		if json.Unmarshal(value, &text) != nil {
			text = string(value)
		}
		words = append(words, "--"+hyphenated(name), text)
	}
	switch {
	case operation == "Upload":
		words = []string{"s3", "cp", file, object}
	case operation == "PresignGetObject":
		words = []string{"s3", "presign", object}
	case strings.HasPrefix(operation, "Presign"), operation == "PutChunked", operation == "PutTrailing", operation == "PutObject" && in.IfMatch+in.IfNoneMatch != "":
		return got, errNotOffered
	case operation == "GetObject":
		words = append(words, file)
	case in.Pages:
		words = append(words, "--page-size", "1")
	case in.Body != "":
		words = append(words, "--body", file)
	}
	cmd := exec.CommandContext(ctx, "/usr/bin/aws", append([]string{"--endpoint-url", a.url, "--output", "json"}, words...)...)
	var complaints bytes.Buffer
	cmd.Env, cmd.Stderr = a.env, &complaints
	out, err := cmd.Output()
	if m := cliRefusal.FindStringSubmatch(complaints.String()); err != nil && m != nil {
		return got, &refusal{code: m[1]}
	}
	if err != nil {
		return got, fmt.Errorf("%w: %s%s", err, complaints.Bytes(), out)
	}
	if got.URL = strings.TrimSpace(string(out)); bytes.HasPrefix(out, []byte("{")) {
		err = json.Unmarshal(out, &got)
	}
	if operation == "GetObject" && err == nil {
		out, err = os.ReadFile(file)
		got.Body = string(out)
	}
	return got, err
}
