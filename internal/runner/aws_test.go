package runner_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fencegate/fencegate/internal/runner"
)

// Versions of the AWS command line that read no endpoint from a variable also find the gateway. Their private
// configuration is removed with the command.
func TestTheAWSCommandLineIsLedToTheGateway(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "it's here")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "aws"), []byte("#!/bin/sh\necho \"aws $*\"\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	const script = `aws s3 cp a s3://b/; aws --region x s3api list-buckets; aws s3 ls --endpoint-url http://other; aws s3 ls --endpoint-url=http://other; aws sts x
echo "$AWS_CONFIG_FILE"; cat "$AWS_CONFIG_FILE"`
	for _, kind := range []runner.Kind{runner.Refreshing, runner.Static} {
		var stdout bytes.Buffer
		cfg := configure(t, &gateway{ttl: time.Minute}, script)
		cfg.S3.Kind, cfg.Environ = kind, []string{"PATH=" + dir + ":/usr/bin:/bin", "AWS_CONFIG_FILE=/dev/null"}
		cfg.Stdout, cfg.Stderr, cfg.Say = &stdout, &stdout, t.Logf
		if _, err := runner.Run(t.Context(), cfg); err != nil {
			t.Fatal(err)
		}
		const led = "aws --endpoint-url http://127.0.0.1:7480 "
		want := led + "s3 cp a s3://b/\n" + led + "--region x s3api list-buckets\naws s3 ls --endpoint-url http://other\naws s3 ls --endpoint-url=http://other\naws sts x\n"
		rest, ok := strings.CutPrefix(stdout.String(), want)
		file, config, _ := strings.Cut(rest, "\n")
		if kind == runner.Static {
			if file != "/dev/null" {
				t.Errorf("the command's own configuration is %q", file)
			}
		} else if !strings.Contains(config, "endpoint_url = http://127.0.0.1:7480\n") {
			t.Errorf("the configuration is %q", config)
		} else if _, err := os.Stat(file); err == nil {
			t.Errorf("%s is left", file)
		}
		if !ok {
			t.Errorf("got %s", stdout.String())
		}
	}
}

// `run -- aws …` starts the wrapper too, which starts the real aws. A path names a file, and no wrapper of it.
func TestAnAWSCommandIsItselfTheWrapper(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	aws := filepath.Join(dir, "aws")
	if err := os.WriteFile(aws, []byte("#!/bin/sh\necho \"aws $*\"\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	for command, want := range map[string]string{"aws": "aws --endpoint-url http://127.0.0.1:7480 s3 ls\n", aws: "aws s3 ls\n"} {
		var stdout bytes.Buffer
		cfg := configure(t, &gateway{ttl: time.Minute}, "")
		cfg.Command, cfg.Environ, cfg.Stdout = []string{command, "s3", "ls"}, []string{"PATH=" + dir + ":/usr/bin:/bin"}, &stdout
		if got, err := runner.Run(t.Context(), cfg); err != nil || got.ExitCode != 0 || stdout.String() != want {
			t.Errorf("%s: %v, %+v, %q, want %q", command, err, got, stdout.String(), want)
		}
	}
}

// s3cmd gets a configuration from the run, which is removed afterwards. The endpoint applies to S3 only: a command that
// uses another service of AWS reaches that service.
func TestToolsFindTheGatewayForS3AndForNothingElse(t *testing.T) {
	t.Parallel()
	for _, kind := range []runner.Kind{runner.Refreshing, runner.Static} {
		var stdout bytes.Buffer
		cfg := configure(t, &gateway{ttl: time.Minute}, `echo "$S3CMD_CONFIG"; cat "$S3CMD_CONFIG" "$AWS_CONFIG_FILE"`)
		cfg.S3.Kind, cfg.Environ = kind, append(cfg.Environ, "AWS_CONFIG_FILE=/dev/null", "S3CMD_CONFIG=/dev/null")
		cfg.Stdout, cfg.Stderr, cfg.Say = &stdout, &stdout, t.Logf
		if _, err := runner.Run(t.Context(), cfg); err != nil {
			t.Fatal(err)
		}
		file, text, _ := strings.Cut(stdout.String(), "\n")
		want := "[default]\nhost_base = 127.0.0.1:7480\nhost_bucket = 127.0.0.1:7480\nuse_https = false\nbucket_location = us-east-1\n"
		if kind == runner.Refreshing {
			want += "[default]\nregion = us-east-1\nservices = fencegate\ns3 =\n  addressing_style = path\n  signature_version = s3v4\n\n[services fencegate]\ns3 =\n  endpoint_url = http://127.0.0.1:7480\n"
		}
		if text != want {
			t.Errorf("the configurations are %q, want %q", text, want)
		}
		if _, err := os.Stat(file); err == nil {
			t.Errorf("%s is left", file)
		}
	}
}
