package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/fencegate/fencegate/client"
	"github.com/fencegate/fencegate/gateway/s3/credentials"
	"github.com/fencegate/fencegate/internal/runner"
	"github.com/fencegate/fencegate/internal/stack"
	"github.com/fencegate/fencegate/wire"
)

// tool is an S3 client under `fencegate run`: script uploads $FILE to $KEY of $BUCKET with only the environment of run.
type tool struct {
	name, version string // version: a command that prints it, or fails if the tool is missing
	how           string // how it gets the endpoint and the grant, for the table
	script        string
	static        bool   // it supports only credentials in variables
	leaves        bool   // it contacts AWS
	optional      bool   // it may be missing even with -all
	path          string // PATH; "": this process's
}

// debian is a PATH with only the distribution's tools.
const debian = "/usr/bin:/bin"

const (
	byBoto = `-c '
import os, boto3
boto3.client("s3"%s).upload_file(os.environ["FILE"], os.environ["BUCKET"], os.environ["KEY"])'`
	byRuby = `ruby -e '
require "aws-sdk-s3"
Aws::S3::Client.new(%s).put_object(bucket: ENV["BUCKET"], key: ENV["KEY"], body: File.read(ENV["FILE"]))'`
	debianAWS   = "/usr/bin/aws --version | sed 's,aws-cli/,,; s, .*,,'"
	botoVersion = ` -c 'import boto3; print(boto3.__version__)'`
	rubyVersion = `ruby -e 'require "aws-sdk-s3"; puts Aws::S3::GEM_VERSION'`
)

var tools = []tool{
	{
		name: "aws", version: debianAWS, path: debian, how: "`run` puts a wrapper before it, which adds `--endpoint-url`",
		script: `aws s3 cp --no-progress "$FILE" "s3://$BUCKET/$KEY"`,
	},
	{
		name: "aws", version: debianAWS, path: debian, how: "called by its path, `/usr/bin/aws`, it ignores the endpoint", leaves: true,
		script: `/usr/bin/aws s3 cp --no-progress "$FILE" "s3://$BUCKET/$KEY"`,
	},
	{
		name: "aws", version: "test \"$(command -v aws)\" != /usr/bin/aws && aws --version | sed 's,aws-cli/,,; s, .*,,'", optional: true,
		how: "the same; it reads `AWS_ENDPOINT_URL_S3` too", script: `aws s3 cp --no-progress "$FILE" "s3://$BUCKET/$KEY"`,
	},
	{
		name: "boto3", version: "/usr/bin/python3" + botoVersion, path: debian, how: "ignores the endpoint", leaves: true,
		script: "/usr/bin/python3 " + fmt.Sprintf(byBoto, ""),
	},
	{
		name: "boto3", version: "/usr/bin/python3" + botoVersion, path: debian, how: "`endpoint_url=os.environ[\"AWS_ENDPOINT_URL_S3\"]` in the program",
		script: "/usr/bin/python3 " + fmt.Sprintf(byBoto, `, endpoint_url=os.environ["AWS_ENDPOINT_URL_S3"]`),
	},
	{
		name: "boto3", version: `python3 -c 'import boto3; assert tuple(map(int, boto3.__version__.split(".")[:2])) >= (1, 28); print(boto3.__version__)'`, how: "`AWS_ENDPOINT_URL_S3`", optional: true,
		script: "python3 " + fmt.Sprintf(byBoto, ""),
	},
	{name: "aws-sdk-go-v2/service/s3", version: "go list -m -f '{{.Version}}' github.com/aws/aws-sdk-go-v2/service/s3", how: "`AWS_ENDPOINT_URL_S3`", script: `"$SELF" -upload <"$FILE"`},
	{
		name: "rclone", version: "rclone version | sed -n 's,^rclone v,,p'", how: "the remote `fencegate:`, which `run` makes by `RCLONE_CONFIG_FENCEGATE_…`",
		script: `rclone copyto "$FILE" "fencegate:$BUCKET/$KEY"`,
	},
	{
		name: "s3cmd", version: "s3cmd --version | sed 's,s3cmd version ,,'", how: "`S3CMD_CONFIG`, a file that `run` writes", static: true,
		script: `s3cmd put --no-progress "$FILE" "s3://$BUCKET/$KEY"`,
	},
	{
		name: "curl", version: "curl --version | sed -n '1s,curl \\([0-9.]*\\).*,\\1,p'", how: "`--aws-sigv4`, as [below](#rows-and-files-together)", static: true,
		script: `curl -sS --fail-with-body --aws-sigv4 "aws:amz:$AWS_REGION:s3" --user "$AWS_ACCESS_KEY_ID:$AWS_SECRET_ACCESS_KEY" \
			-H "X-Amz-Security-Token: $AWS_SESSION_TOKEN" -H 'X-Amz-Content-Sha256: UNSIGNED-PAYLOAD' -T "$FILE" "$AWS_ENDPOINT_URL_S3/$BUCKET/$KEY"`,
	},
	{name: "aws-sdk-s3 (Ruby)", version: rubyVersion, how: "ignores the endpoint", static: true, leaves: true, optional: true, script: fmt.Sprintf(byRuby, "")},
	{
		name: "aws-sdk-s3 (Ruby)", version: rubyVersion, how: "`endpoint: ENV[\"AWS_ENDPOINT_URL_S3\"]` in the program", static: true, optional: true,
		script: fmt.Sprintf(byRuby, `endpoint: ENV["AWS_ENDPOINT_URL_S3"]`),
	},
}

const toolBucket = "tools"

// bench is a gateway for the tools, and a proxy that refuses all connections and records their targets: it detects
// tools that contact another server.
type bench struct {
	client *client.Client
	dir    string
	away   *httptest.Server

	mu    sync.Mutex
	hosts []string
}

// runTools lets each tool upload under a lease of `fencegate run`, and again after another has acquired the resource,
// and prints a row for each.
func runTools(ctx context.Context, all bool) (wrong int, err error) {
	dev, err := stack.StartDev(ctx, stack.DevConfig{Ephemeral: true, PostgresLeases: true, Buckets: map[string]string{toolBucket: "key"}})
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, dev.Close()) }()
	b := &bench{dir: dev.Dir}
	if b.client, err = client.New(client.Config{URL: dev.GatewayURL()}); err != nil {
		return 0, err
	}
	b.away = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b.mu.Lock()
		defer b.mu.Unlock()
		if name, _, _ := strings.Cut(r.Host, ":"); !slices.Contains(b.hosts, name) {
			b.hosts = append(b.hosts, name)
		}
		w.WriteHeader(http.StatusForbidden)
	}))
	defer b.away.Close()
	fmt.Println("\n| tool under `fencegate run` | takes the endpoint by | refreshing | static | stale grant |\n|---|---|---|---|---|")
	for _, t := range tools {
		version, err := t.command(ctx, t.version).Output()
		if err != nil {
			if !t.optional {
				fmt.Fprintf(os.Stderr, "conformance-s3: %s is not on this machine\n", t.name)
			}
			if all && !t.optional {
				wrong++
			}
			continue
		}
		n, err := b.row(ctx, t, strings.TrimSpace(t.name+" "+string(version)))
		wrong += n
		if err != nil {
			return wrong, err
		}
	}
	return wrong, nil
}

// row prints the results of a tool with each kind of credentials.
func (b *bench) row(ctx context.Context, t tool, name string) (wrong int, err error) {
	row := []string{name, t.how}
	var stale []string
	for _, kind := range []runner.Kind{runner.Refreshing, runner.Static} {
		if t.static && kind == runner.Refreshing {
			row = append(row, "–")
			continue
		}
		got, err := b.try(ctx, t, kind)
		if err != nil {
			return wrong, fmt.Errorf("%s: %w", name, err)
		}
		if !got.right {
			wrong++
		}
		row, stale = append(row, got.current), append(stale, got.stale)
	}
	fmt.Println(rowOf(append(row, strings.Join(slices.Compact(stale), "; "))))
	return wrong, nil
}

func (t tool) command(ctx context.Context, script string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "sh", "-c", script)
	if t.path != "" {
		cmd.Env = append(os.Environ(), "PATH="+t.path)
	}
	return cmd
}

// fared is the result of a tool's two uploads.
type fared struct {
	current, stale string
	right          bool
}

// twice is the command of the run. It uploads, waits until another holds the resource, and uploads again.
const twice = `upload() {
%s
}
if upload >"$SAID" 2>&1; then echo ok; else echo failed; fi
read -r superseded || exit 0
if upload >"$SAID" 2>&1; then echo ok; else echo failed; fi
`

// try runs a tool with one kind of credentials.
func (b *bench) try(ctx context.Context, t tool, kind runner.Kind) (got fared, err error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	key := fmt.Sprintf("%x", []byte(t.name+t.how+fmt.Sprint(kind)))
	file, said := filepath.Join(b.dir, "file"), filepath.Join(b.dir, "said")
	if err := os.WriteFile(file, []byte("first"), 0o600); err != nil {
		return got, err
	}
	in, superseded := io.Pipe()
	out, answers := io.Pipe()
	cfg := runner.Config{
		Client: b.client, Acquire: client.AcquireRequest{Resource: toolBucket + "/" + key, TTL: 5 * time.Minute},
		Command: []string{"sh", "-c", fmt.Sprintf(twice, t.script)}, Environ: b.environ(t, key, file, said), OnLost: runner.Warn, S3: runner.S3Access{Kind: kind},
		Stdin: in, Stdout: answers, Stderr: os.Stderr, Say: func(string, ...any) {},
	}
	b.contacted() // by the tool before
	ended := make(chan error, 1)
	go func() {
		_, err := runner.Run(ctx, cfg)
		_ = answers.CloseWithError(err)
		_ = in.Close()
		ended <- err
	}()
	defer func() { err = errors.Join(err, <-ended) }()
	lines := bufio.NewScanner(out)
	defer func() { _ = superseded.Close() }()
	if !lines.Scan() {
		return got, lines.Err()
	}
	current, reason, hosts := lines.Text(), b.said(said), b.contacted()
	if len(hosts) > 0 {
		return fared{"**leaves for " + strings.Join(hosts, ", ") + "**", "–", t.leaves && current == "failed"}, nil
	}
	read, err := b.supersede(ctx, key)
	if err != nil {
		return got, err
	}
	stored := read()
	if err := os.WriteFile(file, []byte("stale"), 0o600); err != nil {
		return got, err
	}
	if _, err := io.WriteString(superseded, "superseded\n"); err != nil {
		return got, err
	}
	lines.Scan()
	stale, refusal := lines.Text(), b.said(said)
	switch {
	case current != "ok" || stored != "first":
		got = fared{"no: " + reason, refusal, false}
	default:
		got = fared{"writes", "refused, " + refusal, !t.leaves && stale == "failed" && staleCode.MatchString(refusal) && read() == "first"}
		if !got.right {
			got.stale = fmt.Sprintf("%s (%s), and stored is %q", stale, refusal, read())
		}
	}
	return got, nil
}

// environ is a user's environment, without variables that would help a tool besides `run`.
func (b *bench) environ(t tool, key, file, said string) []string {
	env := slices.DeleteFunc(os.Environ(), func(kv string) bool {
		name, _, _ := strings.Cut(kv, "=")
		return strings.HasPrefix(name, "RCLONE_") || strings.HasSuffix(strings.ToUpper(name), "_PROXY") || name == "HOME" || t.path != "" && name == "PATH"
	})
	if t.path != "" {
		env = append(env, "PATH="+t.path)
	}
	if t.leaves { // that is detected at once
		env = append(env, "AWS_MAX_ATTEMPTS=1")
	}
	for _, name := range []string{"HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"} {
		env = append(env, name+"="+b.away.URL)
	}
	return append(env, "NO_PROXY=127.0.0.1", "no_proxy=127.0.0.1", "HOME="+b.dir, "BUCKET="+toolBucket, "KEY="+key, "FILE="+file, "SAID="+said, "SELF="+os.Args[0])
}

// staleCode matches a tool's report of the fence's refusal.
var staleCode = regexp.MustCompile(`StaleFencingToken`)

// said returns a tool's error: S3's code if it shows that, or the last line.
func (b *bench) said(path string) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	if code := staleCode.Find(text); code != nil {
		return "`" + string(code) + "`"
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	return strings.ReplaceAll(lines[len(lines)-1], "|", "/")
}

// supersede gives the resource to another holder, who reads the stored object.
func (b *bench) supersede(ctx context.Context, key string) (read func() string, err error) {
	resource := toolBucket + "/" + key
	if _, err := b.client.Revoke(ctx, resource, "conformance"); err != nil {
		return nil, err
	}
	lease, err := b.client.Acquire(ctx, client.AcquireRequest{Resource: resource, TTL: 5 * time.Minute, Wait: time.Minute, Holder: "another"})
	if err != nil {
		return nil, err
	}
	c, err := b.client.Credentials(ctx, wire.CredentialsRequest{Handle: lease.Handle})
	if err != nil {
		return nil, err
	}
	sdk, err := newSDK(ctx, strings.TrimPrefix(c.EndpointURL, "http://"), credentials.Credentials{AccessKeyID: c.AccessKeyID, SecretAccessKey: c.SecretAccessKey, SessionToken: c.SessionToken})
	return func() string {
		a, err := sdk.call(ctx, "GetObject", input{Bucket: toolBucket, Key: key})
		return a.Body + strings.TrimPrefix(fmt.Sprint(err), "<nil>")
	}, err
}

// contacted are the hosts that were contacted since the last call.
func (b *bench) contacted() (hosts []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	hosts, b.hosts = b.hosts, nil
	return hosts
}
