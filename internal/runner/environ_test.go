package runner_test

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/internal/runner"
)

func TestTheCommandFindsItsGrantInTheEnvironment(t *testing.T) {
	t.Parallel()
	g := &gateway{ttl: time.Minute}
	got := run(t, g, "env")
	for _, want := range []string{
		"FENCE_RESOURCE=orders/10 01\n", "FENCE_TOKEN=" + presented + "\n",
		"PGHOST=127.0.0.1\n", "PGPORT=7432\n", "PGDATABASE=app\n",
		"PGOPTIONS=-c statement_timeout=5s -c fence.resource=orders/10%2001 -c fence.token=" + presented + "\n",
		"AWS_CONTAINER_CREDENTIALS_FULL_URI=http://127.0.0.1:", "AWS_CONTAINER_AUTHORIZATION_TOKEN=", "AWS_REGION=us-east-1\n",
		"AWS_SHARED_CREDENTIALS_FILE=/dev/null\n", "AWS_CONFIG_FILE=/", "JDBC_URL=jdbc:postgresql://127.0.0.1:7432/app?options=",
		"AWS_ENDPOINT_URL_S3=http://127.0.0.1:7480\n", "S3CMD_CONFIG=/",
		"RCLONE_CONFIG_FENCEGATE_TYPE=s3\n", "RCLONE_CONFIG_FENCEGATE_ENV_AUTH=true\n", "RCLONE_CONFIG_FENCEGATE_ENDPOINT=http://127.0.0.1:7480\n",
	} {
		if !strings.Contains(got.stdout, want) {
			t.Errorf("%q is missing in:\n%s", want, got.stdout)
		}
	}
	for _, name := range []string{"AWS_PROFILE", "AWS_DEFAULT_PROFILE", "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "AWS_ACCESS_KEY_ID", "PGHOSTADDR", "PGSERVICE"} {
		if strings.Contains(got.stdout, name+"=") {
			t.Errorf("%s is left, which leads past the gateway:\n%s", name, got.stdout)
		}
	}
	if strings.Contains(got.stdout, "=old") {
		t.Errorf("other credentials are left:\n%s", got.stdout)
	}
	if got.ExitCode != 0 || got.Lost != nil || g.released.Load() != 1 {
		t.Errorf("got %+v and %d releases, want success and one release", got.Result, g.released.Load())
	}
	if strings.Contains(got.said, presented[3:]) {
		t.Error("the seal was printed")
	}
}

func TestURLsLeadToTheGateway(t *testing.T) {
	t.Parallel()
	var stdout bytes.Buffer
	cfg := configure(t, &gateway{ttl: time.Minute}, `echo "$DATABASE_URL $REPORTS_URL"`)
	cfg.Environ, cfg.PGURLs = append(cfg.Environ, "DATABASE_URL=postgres://u@db/shop"), []string{"DATABASE_URL", "REPORTS_URL"}
	cfg.Stdout, cfg.Stderr, cfg.Say = &stdout, &stdout, t.Logf
	if _, err := runner.Run(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	const options = "?options=-c%20fence.resource%3Dorders%2F10%252001%20-c%20fence.token%3D" + presented
	if want := "postgres://u@127.0.0.1:7432/shop" + options + " postgresql://127.0.0.1:7432/app" + options + "\n"; stdout.String() != want {
		t.Errorf("got %s, want %s", stdout.String(), want)
	}
	cfg.Environ[1] = "DATABASE_URL=host=db"
	if _, err := runner.Run(t.Context(), cfg); !errors.Is(err, fence.ErrInvalid) {
		t.Errorf("what is no URL: %v", err)
	}
}
