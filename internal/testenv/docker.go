//go:build unix

package testenv

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"time"

	"github.com/moby/moby/client"
	"github.com/testcontainers/testcontainers-go"
	tclog "github.com/testcontainers/testcontainers-go/log"
)

// The images, and how long a missing one is searched for.
const (
	defaultPostgresImage = "postgres:17"
	defaultRedisImage    = "valkey/valkey:8"

	askPatience  = 5 * time.Second // for an answer of Docker, or of the registry
	pullPatience = 5 * time.Minute // for a download after the registry has answered
	rememberNo   = 5 * time.Minute // how long other test binaries rely on a registry's failure to answer
)

func postgresImage() string { return envOr("FENCEGATE_TEST_POSTGRES_IMAGE", defaultPostgresImage) }
func redisImage() string    { return envOr("FENCEGATE_TEST_REDIS_IMAGE", defaultRedisImage) }

func envOr(name, otherwise string) string {
	if v := os.Getenv(name); v != "" {
		return v
	}
	return otherwise
}

// docker is the container engine, looked up once.
var docker = sync.OnceValues(func() (engine, error) {
	if hasDockerCommand() {
		// The watchdog of package child removes containers, so Ryuk's image is not needed.
		if err := os.Setenv("TESTCONTAINERS_RYUK_DISABLED", "true"); err != nil {
			return engine{}, err
		}
	}
	tclog.SetDefault(silent{})
	provider, err := testcontainers.NewDockerProvider()
	if err != nil {
		return engine{}, fmt.Errorf("not reachable: %w", err)
	}
	atEnd(provider.Close)
	ctx, cancel := context.WithTimeout(context.Background(), askPatience)
	defer cancel()
	if _, err := provider.Client().Ping(ctx, client.PingOptions{}); err != nil {
		return engine{}, fmt.Errorf("does not answer: %w", err)
	}
	host, err := provider.DaemonHost(ctx)
	return engine{provider, host}, err
})

func hasDockerCommand() bool {
	_, err := exec.LookPath("docker")
	return err == nil
}

type engine struct {
	*testcontainers.DockerProvider

	daemonHost string // the host of published ports
}

type silent struct{}

func (silent) Printf(string, ...any) {}

// ensureImage returns nil when the image is present. It pulls it if possible, and otherwise fails fast.
func (d engine) ensureImage(ctx context.Context, image string) error {
	ask, cancel := context.WithTimeout(ctx, askPatience)
	defer cancel()
	if _, err := d.Client().ImageInspect(ask, image); err == nil {
		return nil
	}
	note := notePath(image)
	if info, err := os.Stat(note); err == nil && time.Since(info.ModTime()) < rememberNo {
		return fmt.Errorf("image %s is not local and could not be pulled a moment ago", image)
	}
	if _, err := d.Client().DistributionInspect(ask, image, client.DistributionInspectOptions{}); err != nil {
		_ = os.WriteFile(note, nil, 0o600) // if it can't be written, the next binary asks too
		return fmt.Errorf("image %s is neither local nor can it be pulled: %w", image, err)
	}
	fmt.Fprintf(os.Stderr, "testenv: pulling image %s\n", image)
	pull, cancel := context.WithTimeout(ctx, pullPatience)
	defer cancel()
	progress, err := d.Client().ImagePull(pull, image, client.ImagePullOptions{})
	if err != nil {
		return fmt.Errorf("pull image %s: %w", image, err)
	}
	defer progress.Close()
	if _, err := io.Copy(io.Discard, progress); err != nil {
		return fmt.Errorf("pull image %s: %w", image, err)
	}
	_, err = d.Client().ImageInspect(pull, image)
	return err
}

// notePath is the file that records a registry's failure to answer for
// an image, for other test binaries; empty without a cache folder.
func notePath(image string) string {
	cache, err := os.UserCacheDir()
	if err != nil {
		return ""
	}
	dir := filepath.Join(cache, "fencegate")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return ""
	}
	sum := sha256.Sum256([]byte(image))
	return filepath.Join(dir, fmt.Sprintf("test-image-missing-%x", sum[:6]))
}

// containersFor returns the engine if it can run the image, or else the reason why not.
func containersFor(ctx context.Context, image string) (engine, error) {
	if v := os.Getenv("FENCEGATE_TEST_SERVICES"); v == "local" {
		return engine{}, errors.New("ruled out by FENCEGATE_TEST_SERVICES=local")
	}
	d, err := docker()
	if err != nil {
		return engine{}, err
	}
	return d, d.ensureImage(ctx, image)
}

// localAllowed checks the other half of FENCEGATE_TEST_SERVICES.
func localAllowed() error {
	switch v := os.Getenv("FENCEGATE_TEST_SERVICES"); v {
	case "", "auto", "local":
		return nil
	case "containers":
		return errors.New("ruled out by FENCEGATE_TEST_SERVICES=containers")
	default:
		return fmt.Errorf("FENCEGATE_TEST_SERVICES=%s is none of auto, containers, local", v)
	}
}
