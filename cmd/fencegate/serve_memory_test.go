//go:build memory && linux

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"

	"github.com/fencegate/fencegate/client"
	"github.com/fencegate/fencegate/wire"
)

// zeros is an upload's body.
type zeros struct{ left int64 }

func (z *zeros) Read(p []byte) (int, error) {
	if z.left == 0 {
		return 0, io.EOF
	}
	n := min(int64(len(p)), z.left)
	clear(p[:n])
	z.left -= n
	return int(n), nil
}

// memory returns a figure of a process, in bytes: VmRSS, or VmHWM, the maximum since the peak was reset.
func memory(t *testing.T, pid int, name string) int64 {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, name+":"); ok {
			kib, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			return kib << 10
		}
	}
	t.Fatalf("no %s", name)
	return 0
}

// The test measures a gateway in its own process: `make test-memory`.
func TestUploadsTakeLittleMemory(t *testing.T) {
	const mib = 1 << 20
	s := startDev(t, openTempDir(t), "--ephemeral", "--lock", "postgres")
	pid := s.cmd.Process.Pid
	c, err := client.New(client.Config{URL: s.api})
	if err != nil {
		t.Fatal(err)
	}
	lease, err := c.Acquire(t.Context(), client.AcquireRequest{Resource: "orders/1001", TTL: 5 * time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	creds, err := c.Credentials(t.Context(), wire.CredentialsRequest{Handle: lease.Handle})
	if err != nil {
		t.Fatal(err)
	}
	upload := func(key string, size int64) error {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPut, creds.EndpointURL+"/orders/1001/"+key, &zeros{size})
		if err != nil {
			return err
		}
		req.ContentLength = size
		return send(t.Context(), req, creds)
	}
	if err := upload("warm", mib); err != nil {
		t.Fatal(err)
	}
	idle := memory(t, pid, "VmRSS")
	for _, load := range []struct {
		name     string
		parallel int
		size     int64
		limit    int64 // over idle; 0: only logged
	}{{"one upload of 1 GiB", 1, 1 << 30, 40 * mib}, {"64 uploads of 64 MiB at once", 64, 64 * mib, 0}, {"256 uploads of 4 MiB at once", 256, 4 * mib, 0}} {
		if err := os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", pid), []byte("5"), 0); err != nil {
			t.Fatal(err)
		}
		failed, begun := make([]error, load.parallel), time.Now()
		var all sync.WaitGroup
		for i := range load.parallel {
			all.Go(func() { failed[i] = upload(strconv.Itoa(i), load.size) })
		}
		all.Wait()
		if err := errors.Join(failed...); err != nil {
			t.Fatal(err)
		}
		grown := memory(t, pid, "VmHWM") - idle
		fmt.Printf("%s: peak RSS %.1f MiB over the %.1f MiB when idle, in %s\n", load.name, float64(grown)/mib, float64(idle)/mib, time.Since(begun).Round(time.Millisecond))
		if load.limit > 0 && grown > load.limit {
			t.Errorf("%s: %d MiB over idle, want at most %d", load.name, grown/mib, load.limit/mib)
		}
	}
}

func send(ctx context.Context, req *http.Request, creds wire.Credentials) error {
	const payload = "UNSIGNED-PAYLOAD"
	req.Header.Set("X-Amz-Content-Sha256", payload)
	err := v4.NewSigner().SignHTTP(ctx, aws.Credentials{AccessKeyID: creds.AccessKeyID, SecretAccessKey: creds.SecretAccessKey, SessionToken: creds.SessionToken}, req, payload, "s3", creds.Region, time.Now())
	if err != nil {
		return err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = res.Body.Close() }()
	if text, err := io.ReadAll(res.Body); err != nil || res.StatusCode != http.StatusOK {
		return fmt.Errorf("%d %s: %w", res.StatusCode, text, err)
	}
	return nil
}
