package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/gateway/objects"
	"github.com/fencegate/fencegate/gateway/s3/credentials"
	"github.com/fencegate/fencegate/internal/s3stack"
)

// clients lists the commands of the clients, and commands that show
// that they are installed. Those in Go are this program again.
var clients = []struct{ name, command, version string }{
	{"aws-sdk-go-v2", "", ""},
	{"minio-go", "", ""},
	{"boto3", "/usr/bin/python3 clients/with_boto3.py", "/usr/bin/python3 -c 'import boto3; print(boto3.__version__)'"},
	{"awscli", "/usr/bin/python3 clients/with_awscli.py", "/usr/bin/aws --version >/dev/null && /usr/bin/aws --version | sed 's,aws-cli/,,; s, .*,,'"},
	{"s3cmd", "/usr/bin/python3 clients/with_s3cmd.py", "s3cmd --version >/dev/null && s3cmd --version | sed 's,s3cmd version ,,'"},
	{"rclone", "/usr/bin/python3 clients/with_rclone.py", "rclone version >/dev/null && rclone version | sed -n 's,^rclone v,,p'"},
}

// writes are the cases that need a grant; the others are reads.
var writes = []string{
	"put", "put with checksum", "put if none match", "put if match", "multipart", "copy", "part copy", "put tags", "delete tags",
	"delete", "delete many", "delete a version", "presigned put", "chunk-signed put", "chunk-signed put, trailing checksum",
}

var reads = []string{
	"get", "range", "conditional get", "response overrides", "head", "list v1", "list v2", "list versions", "get a version",
	"attributes", "get tags", "presigned get", "checksum",
}

// wanted is the result of a write, by what is presented.
var wanted = map[string]string{"current": "ok", "stale": "412 StaleFencingToken", "none": "403 MissingFencingToken"}

const notOffered = "-"

// fits reports whether an outcome is the expected one. Not every client shows the status.
func fits(outcome, want string) bool {
	_, code, _ := strings.Cut(want, " ")
	return outcome == want || outcome == code && code != ""
}

const bucket = "conformance"

func runClients(ctx context.Context, all bool) (wrong int, err error) {
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
	table := newTable()
	for _, c := range clients {
		version, err := exec.CommandContext(ctx, "sh", "-c", c.version).CombinedOutput()
		if err != nil {
			fmt.Fprintf(os.Stderr, "conformance-s3: %s is not on this machine: %s\n", c.name, version)
			if all {
				wrong++
			}
			continue
		}
		fmt.Fprintln(os.Stderr, "conformance-s3:", c.name)
		for _, grant := range []string{"current", "stale", "none"} {
			got, err := run(ctx, srv, c.name, c.command, grant, presented[grant])
			if err != nil {
				return wrong, fmt.Errorf("%s with grant %s: %w", c.name, grant, err)
			}
			table.add(c.name, grant, got)
		}
		table.version[c.name] = strings.TrimSpace(string(version))
	}
	return wrong + table.print(), nil
}

// grants creates a bucket that keeps versions, a superseded grant
// of it and the current one, and the objects that all clients read.
func (w *world) grants(ctx context.Context, srv *s3stack.Server) (map[string]credentials.Credentials, error) {
	if _, err := srv.Catalog().EnsureBucket(ctx, bucket, objects.BucketRule()); err != nil {
		return nil, err
	}
	if err := srv.Catalog().SetKeep(ctx, bucket, objects.Keep{All: true}); err != nil {
		return nil, err
	}
	of := map[string]credentials.Credentials{"none": srv.Root}
	for token, name := range []string{"stale", "current"} {
		if err := w.db.Arm(ctx, bucket, fence.Token(token+1)); err != nil {
			return nil, err
		}
		var err error
		if of[name], err = srv.Issue(bucket, fence.Token(token+1)); err != nil {
			return nil, err
		}
	}
	return of, seed(ctx, srv, of["current"])
}

// outcomes are a client's results, by case.
type outcomes map[string]string

// run lets one client run all cases with one grant.
func run(ctx context.Context, srv *s3stack.Server, name, command, grant string, c credentials.Credentials) (outcomes, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	words := strings.Fields(command)
	if command == "" {
		words = []string{os.Args[0], "-client", name}
	}
	cmd := exec.CommandContext(ctx, words[0], words[1:]...) //nolint:gosec // a line of the table above
	cmd.Env = clientEnv(srv.Addr, name+"-"+grant+"/", c)
	var problems strings.Builder
	cmd.Stderr = &problems
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%w: %s%s", err, out, problems.String())
	}
	got := outcomes{}
	for line := range strings.Lines(string(out)) {
		name, outcome, found := strings.Cut(strings.TrimSuffix(line, "\n"), "\t")
		if _, twice := got[name]; !found || twice || !slices.Contains(writes, name) && !slices.Contains(reads, name) {
			return nil, fmt.Errorf("it said %q", line)
		}
		got[name] = outcome
	}
	return got, nil
}

// clientEnv is a client's environment, because everyone can read a command line.
func clientEnv(addr, run string, c credentials.Credentials) []string {
	env := append(slices.DeleteFunc(os.Environ(), func(s string) bool { return strings.HasPrefix(s, "AWS_") }),
		"ENDPOINT="+addr, "BUCKET="+bucket, "RUN="+run, "PYTHONDONTWRITEBYTECODE=1",
		"AWS_ACCESS_KEY_ID="+c.AccessKeyID, "AWS_SECRET_ACCESS_KEY="+c.SecretAccessKey, "AWS_REGION=us-east-1", "AWS_DEFAULT_REGION=us-east-1",
		"AWS_CONFIG_FILE=/dev/null", "AWS_SHARED_CREDENTIALS_FILE=/dev/null", "AWS_EC2_METADATA_DISABLED=true", "AWS_PAGER=")
	if c.SessionToken != "" {
		env = append(env, "AWS_SESSION_TOKEN="+c.SessionToken)
	}
	return env
}
