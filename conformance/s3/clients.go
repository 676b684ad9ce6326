package main

import (
	"cmp"
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
	"github.com/fencegate/fencegate/internal/stack"
)

// s3Client is a client, with a command that shows that it is installed. It does the cases by an adapter of the API, or by
// a script of its own: all but those that it lacks.
type s3Client struct {
	name, version string
	open          func(ctx context.Context, addr string, c credentials.Credentials) (caller, error)
	checksums     string
	script        string
	lacks         []string
}

var clients = []s3Client{
	{name: "aws-sdk-go-v2", open: newSDK, checksums: "CRC32 CRC32C CRC64NVME SHA1 SHA256", lacks: chunked},
	{name: "minio-go", open: newMinio, checksums: "MD5"},
	{
		name: "boto3", version: "/usr/bin/python3 -c 'import boto3; print(boto3.__version__)'",
		open: newBoto3, checksums: "CRC32 SHA1 SHA256", lacks: chunked, // the other checksums need a library that is not there
	},
	{
		name: "awscli", version: "/usr/bin/aws --version >/dev/null && /usr/bin/aws --version | sed 's,aws-cli/,,; s, .*,,'",
		open: newAWSCLI, checksums: "CRC32 CRC32C SHA1 SHA256", lacks: slices.Concat(chunked, conditional, []string{"presigned put"}),
	},
	{
		name: "s3cmd", version: "s3cmd --version >/dev/null && s3cmd --version | sed 's,s3cmd version ,,'", script: "clients/with_s3cmd.py",
		lacks: slices.Concat(chunked, conditional, ofTheAPI, []string{"part copy", "range", "list v2", "list versions", "presigned get", "checksum"}),
	},
	{
		name: "rclone", version: "rclone version >/dev/null && rclone version | sed -n 's,^rclone v,,p'", script: "clients/with_rclone.py",
		lacks: slices.Concat(chunked, conditional, ofTheAPI),
	},
}

// The cases that several clients lack.
var (
	chunked     = []string{"chunk-signed put", "chunk-signed put, trailing checksum"}
	conditional = []string{"put if none match", "put if match"}
	ofTheAPI    = []string{
		"put with checksum", "put tags", "delete tags", "delete a version", "presigned put",
		"conditional get", "response overrides", "get a version", "attributes", "get tags",
	}
)

// wanted is the result of a write, by what is presented.
var wanted = map[string]string{"current": "ok", "stale": "412 StaleFencingToken", "none": "403 MissingFencingToken"}

var presented = []string{"current", "stale", "none"}

const notOffered = "-"

const bucket = "conformance"

// outcomes are a client's results, by case and what is presented.
type outcomes map[string]map[string]string

func runClients(ctx context.Context, all bool) (wrong int, err error) {
	w, err := start(ctx)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, w.Close()) }()
	srv, grants, err := w.granted(ctx)
	if err != nil {
		return 0, err
	}
	head, columns := []string{"case"}, []func(string, bool) (string, int){}
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
		got := outcomes{}
		for _, grant := range presented {
			ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
			run := c.name + "-" + grant + "/"
			if c.script != "" {
				err = got.ofScript(ctx, c.script, grant, clientEnv(srv.Addr, run, grants[grant]))
			} else {
				err = got.ofCases(ctx, grant, session{run: run, checksums: strings.Fields(c.checksums)}, func() (caller, error) { return c.open(ctx, srv.Addr, grants[grant]) })
			}
			cancel()
			if err != nil {
				return wrong, fmt.Errorf("%s with grant %s: %w", c.name, grant, err)
			}
		}
		head = append(head, strings.TrimSpace(c.name+" "+string(version)))
		columns = append(columns, func(name string, writes bool) (string, int) { return got.cell(c, name, writes) })
	}
	fmt.Println(rowOf(head) + "\n|" + strings.Repeat("---|", len(head)))
	for i, one := range cases {
		row := []string{one.name}
		for _, column := range columns {
			text, n := column(one.name, i < len(writes))
			row, wrong = append(row, text), wrong+n
		}
		fmt.Println(rowOf(row))
	}
	fmt.Println("\nfenced: done with the current grant; with a superseded one 412 StaleFencingToken, with none 403 MissingFencingToken, and nothing changed. –: not offered.")
	return wrong, nil
}

// granted starts a server with a bucket that keeps versions, a superseded grant of it and the current one, and the
// objects that all clients read.
func (w *world) granted(ctx context.Context) (*stack.S3, map[string]credentials.Credentials, error) {
	srv, err := w.server(ctx, objects.BucketRule())
	if err != nil {
		return nil, nil, err
	}
	if _, err := srv.Catalog().EnsureBucket(ctx, bucket, objects.BucketRule()); err != nil {
		return nil, nil, err
	}
	if err := srv.Catalog().SetKeep(ctx, bucket, objects.Keep{All: true}); err != nil {
		return nil, nil, err
	}
	grants := map[string]credentials.Credentials{"none": srv.Root}
	for token, name := range []string{"stale", "current"} {
		if grants[name], err = w.grant(ctx, srv, bucket, fence.Token(token+1)); err != nil {
			return nil, nil, err
		}
	}
	return srv, grants, seed(ctx, srv.Addr, grants["current"])
}

// grant raises the fence, and returns the grant's credentials.
func (w *world) grant(ctx context.Context, srv *stack.S3, resource string, token fence.Token) (credentials.Credentials, error) {
	if _, err := w.pg.Arm(ctx, resource, token); err != nil {
		return credentials.Credentials{}, err
	}
	return srv.Issue(resource, token)
}

func (o outcomes) put(name, grant, outcome string) {
	if o[name] == nil {
		o[name] = map[string]string{}
	}
	o[name][grant] = outcome
}

// ofCases does the cases with a client.
func (o outcomes) ofCases(ctx context.Context, grant string, s session, open func() (caller, error)) (err error) {
	if s.caller, err = open(); err != nil {
		return err
	}
	s.ctx, s.current = ctx, grant == "current"
	for _, one := range cases {
		o.put(one.name, grant, outcome(one.do(s)))
	}
	return s.close()
}

// ofScript lets a script do those that it has.
func (o outcomes) ofScript(ctx context.Context, script, grant string, env []string) error {
	cmd := exec.CommandContext(ctx, "/usr/bin/python3", script)
	cmd.Env = env
	var problems strings.Builder
	cmd.Stderr = &problems
	out, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("%w: %s%s", err, out, problems.String())
	}
	for line := range strings.Lines(string(out)) {
		name, outcome, found := strings.Cut(strings.TrimSuffix(line, "\n"), "\t")
		if _, twice := o[name][grant]; !found || twice || !slices.ContainsFunc(cases, func(c namedCase) bool { return c.name == name }) {
			return fmt.Errorf("it said %q", line)
		}
		o.put(name, grant, outcome)
	}
	return nil
}

// clientEnv is a client's environment, because everyone can read a command line.
func clientEnv(addr, run string, c credentials.Credentials) []string {
	env := append(os.Environ(),
		"ENDPOINT="+addr, "BUCKET="+bucket, "RUN="+run, "PYTHONDONTWRITEBYTECODE=1",
		"AWS_ACCESS_KEY_ID="+c.AccessKeyID, "AWS_SECRET_ACCESS_KEY="+c.SecretAccessKey, "AWS_REGION=us-east-1", "AWS_DEFAULT_REGION=us-east-1",
		"AWS_CONFIG_FILE=/dev/null", "AWS_SHARED_CREDENTIALS_FILE=/dev/null", "AWS_EC2_METADATA_DISABLED=true", "AWS_PAGER=")
	if c.SessionToken != "" {
		env = append(env, "AWS_SESSION_TOKEN="+c.SessionToken)
	}
	return env
}

// known lists unexpected outcomes, and why they occur.
var known = map[string]map[string]string{
	// versitygw takes the line's end for a part of the checksum; nothing is stored.
	"minio-go chunk-signed put, trailing checksum": {"current": "400 BadDigest", "stale": wanted["stale"], "none": wanted["none"], "cell": "refused: BadDigest"},
	// The keys are refused one by one, in an answer that s3cmd does not read.
	"s3cmd delete many": {"current": "ok", "stale": "unseen", "none": "unseen", "cell": "fenced, but it shows no refusal"},
}

// cell is one case of one client. What it lacks it lacks whatever is presented. Not every client shows the status.
func (o outcomes) cell(c s3Client, name string, writes bool) (text string, wrong int) {
	expected, odd, lacks := wanted, known[c.name+" "+name], slices.Contains(c.lacks, name)
	switch {
	case lacks:
		expected, text = map[string]string{"current": notOffered, "stale": notOffered, "none": notOffered}, "–"
	case odd != nil:
		expected, text = odd, odd["cell"]
	case writes:
		text = "fenced"
	default:
		expected, text = map[string]string{"current": "ok", "stale": "ok", "none": "ok"}, "reads"
	}
	var others []string
	for _, grant := range presented {
		outcome, want := cmp.Or(o[name][grant], notOffered), expected[grant]
		if _, code, _ := strings.Cut(want, " "); outcome != want && (outcome != code || code == "") {
			others = append(others, fmt.Sprintf("%s: %s (wanted %s)", grant, outcome, want))
		}
	}
	if len(others) > 0 {
		text = strings.Join(others, "; ")
	}
	return text, len(others)
}

func rowOf(cells []string) string { return "| " + strings.Join(cells, " | ") + " |" }
