//go:build unix

package gateway_test

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awsconfig "github.com/aws/aws-sdk-go-v2/config"
	awss3 "github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/smithy-go/middleware"
	smithyhttp "github.com/aws/smithy-go/transport/http"

	httpapi "github.com/fencegate/fencegate/client"
	"github.com/fencegate/fencegate/gateway"
	"github.com/fencegate/fencegate/internal/runner"
	"github.com/fencegate/fencegate/internal/testenv"
	"github.com/fencegate/fencegate/lock"
)

// Credentials that outlive a lease's deadline write nothing once the lease has expired, even if nobody has acquired the
// resource since. No other write under that grant succeeds then, either.
func TestStaticCredentialsEndWhenTheLeaseRunsOut(t *testing.T) {
	t.Parallel()
	pg := testenv.Postgres(t)
	guarded(t, pg)
	c := start(t, config(t, pg))
	var l lease
	var creds answer
	testenv.Paced(t, 2*time.Second, func(ttl time.Duration) (err error) {
		l = c.acquire("orders/1001", ttl.String(), "30s")
		if creds, err = c.expect(http.StatusOK, "POST", "/v1/leases/credentials", map[string]string{"handle": l.handle}); err == nil {
			err = c.put(creds, "1001/a", "held")
		}
		return err
	})
	testenv.Eventually(t, "the lease ran out", func() bool {
		return c.want(http.StatusOK, "GET", "/v1/resources/orders/1001", nil).Body["locked"] == false
	})
	var err error
	testenv.Eventually(t, "its credentials have ended", func() bool {
		err = c.put(creds, "1001/a", "late")
		return err != nil
	})
	if !strings.Contains(err.Error(), "StaleFencingToken") {
		t.Errorf("a write after the lease: %v", err)
	}
	if a := c.want(http.StatusOK, "GET", "/v1/resources/orders/1001", nil); a.text("ended_at") == "" {
		t.Errorf("the grant has not ended: %v", a.Body)
	}
	if _, err := c.connect(pg, l).Exec(t.Context(), updateOrder, "late"); err == nil || !strings.Contains(err.Error(), "ZF001") {
		t.Errorf("a row under that grant: %v", err)
	}
}

// The static credentials of a renewed lease stay valid beyond the lease's first deadline.
func TestStaticCredentialsOfARenewedLeaseGoOn(t *testing.T) {
	t.Parallel()
	pg := testenv.Postgres(t)
	c := start(t, config(t, pg))
	var creds answer
	var first time.Time // when the lease ends if it is not renewed
	testenv.Paced(t, 2*time.Second, func(ttl time.Duration) (err error) {
		l := c.acquire("orders/1001", ttl.String(), "30s")
		first = time.Now().Add(ttl)
		if creds, err = c.expect(http.StatusOK, "POST", "/v1/leases/credentials", map[string]string{"handle": l.handle}); err == nil {
			err = c.put(creds, "1001/a", "held")
		}
		if err == nil {
			_, err = c.expect(http.StatusOK, "POST", "/v1/leases/renew", map[string]string{"handle": l.handle, "ttl": "1m"})
		}
		return err
	})
	testenv.Eventually(t, "its first deadline is over", func() bool { return time.Since(first) > 500*time.Millisecond })
	if err := c.put(creds, "1001/a", "renewed"); err != nil {
		t.Errorf("under the renewed lease: %v", err)
	}
}

// Refreshing credentials are limited to the lease's current deadline, and reach further after a renewal.
func TestRefreshingCredentialsAreBoundedByTheLease(t *testing.T) {
	t.Parallel()
	pg := testenv.Postgres(t)
	c := start(t, config(t, pg))
	var l lease
	refresh := func() (answer, time.Time, error) {
		t.Helper()
		a, err := c.expect(http.StatusOK, "POST", "/v1/leases/credentials", map[string]any{"handle": l.handle, "refreshing": true})
		if err != nil {
			return a, time.Time{}, err
		}
		at, err := time.Parse(time.RFC3339Nano, a.text("expires_at"))
		if err != nil {
			t.Fatal(err)
		}
		return a, at, nil
	}
	var first answer
	var end time.Time
	testenv.Paced(t, 3*time.Second, func(ttl time.Duration) (err error) {
		l = c.acquire("orders/1001", ttl.String(), "30s")
		if first, end, err = refresh(); err != nil {
			return err
		}
		if left := time.Until(end); left > ttl {
			t.Fatalf("they are good for %v of a lease of %v", left, ttl)
		}
		if err := c.put(first, "1001/a", "first"); err != nil {
			return err
		}
		_, err = c.expect(http.StatusOK, "POST", "/v1/leases/renew", map[string]string{"handle": l.handle, "ttl": "1m"})
		return err
	})
	second, later, err := refresh()
	if err != nil {
		t.Fatal(err)
	}
	if left := time.Until(later); left < 30*time.Second || left > time.Minute {
		t.Errorf("after the renewal they are good for %v", left)
	}
	testenv.Eventually(t, "the first ones have expired", func() bool { return !time.Now().Before(end) })
	if err := c.put(first, "1001/a", "first"); err == nil || !strings.Contains(err.Error(), "ExpiredToken") {
		t.Errorf("expired ones: %v", err)
	}
	if err := c.put(second, "1001/a", "second"); err != nil {
		t.Errorf("refreshed ones: %v", err)
	}
	c.want(http.StatusNoContent, "POST", "/v1/leases/release", map[string]string{"handle": l.handle})
	if err := c.put(second, "1001/a", "released"); err == nil || !strings.Contains(err.Error(), "StaleFencingToken") {
		t.Errorf("after the release: %v", err)
	}
}

// attempt makes requests attempts of one call.
func attempt(id string) func(*awss3.Options) {
	return awss3.WithAPIOptions(func(s *middleware.Stack) error {
		return s.Build.Add(middleware.BuildMiddlewareFunc("attempt", func(ctx context.Context, in middleware.BuildInput, next middleware.BuildHandler) (middleware.BuildOutput, middleware.Metadata, error) {
			if req, ok := in.Request.(*smithyhttp.Request); ok {
				req.Header.Set("Amz-Sdk-Invocation-Id", id)
			}
			return next.HandleBuild(ctx, in)
		}), middleware.After)
	})
}

// A client whose answer was lost asks again when its refreshing credentials have ended with the lease.
func TestWhatRefreshingCredentialsDidIsSaidAfterTheirEnd(t *testing.T) {
	t.Parallel()
	pg := testenv.Postgres(t)
	c := start(t, config(t, pg))
	for name, after := range map[string]func(resource string){"run out": func(string) {}, "another's": func(resource string) { c.acquire(resource, "30s", "30s") }} {
		key := strings.ReplaceAll(name, " ", "-") + "/a"
		resource, _, _ := strings.Cut(key, "/")
		resource = "orders/" + resource
		var creds answer
		var end time.Time
		var one func(*awss3.Options)
		another := attempt("another")
		testenv.Paced(t, 2*time.Second, func(ttl time.Duration) (err error) {
			l := c.acquire(resource, ttl.String(), "30s")
			if creds, err = c.expect(http.StatusOK, "POST", "/v1/leases/credentials", map[string]any{"handle": l.handle, "refreshing": true}); err != nil {
				return err
			}
			if end, err = time.Parse(time.RFC3339Nano, creds.text("expires_at")); err != nil {
				t.Fatal(err)
			}
			one = attempt("one-" + ttl.String())
			return c.put(creds, key, "x", one)
		})
		testenv.Eventually(t, "they have expired", func() bool { return !time.Now().Before(end) })
		after(resource)
		if err := c.put(creds, key, "x", one); err != nil {
			t.Errorf("%s: what was done: %v", name, err)
		}
		if err := c.put(creds, key, "y", another); err == nil || !strings.Contains(err.Error(), "ExpiredToken") && !strings.Contains(err.Error(), "StaleFencingToken") {
			t.Errorf("%s: another write: %v", name, err)
		}
		if err := c.get(creds, key); err == nil || !strings.Contains(err.Error(), "ExpiredToken") {
			t.Errorf("%s: a read: %v", name, err)
		}
	}
}

// The records that answer a repeated request are kept while credentials can still repeat it.
func TestRecordsStayForAsLongAsCredentialsLast(t *testing.T) {
	t.Parallel()
	for keep, good := range map[time.Duration]bool{time.Hour: false, 36 * time.Hour: false, 37 * time.Hour: true, 0: true} {
		_, err := gateway.New(gateway.Config{PostgresURL: "postgres://127.0.0.1:1/x", RedisNodes: []lock.Node{{Addr: "127.0.0.1:1"}}, SweepRecords: keep})
		if named := err != nil && strings.Contains(err.Error(), "SweepRecords"); named == good {
			t.Errorf("%v: %v", keep, err)
		}
	}
}

const sdkVariable = "FENCEGATE_TEST_SDK_UNTIL"

// The next test runs this under a lease: aws-sdk-go-v2 with its default settings uploads until the given time.
func TestTheSDKThatRefreshes(t *testing.T) {
	text := os.Getenv(sdkVariable)
	if text == "" {
		return // not run by the next test
	}
	end, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		t.Fatal(err)
	}
	cfg, err := awsconfig.LoadDefaultConfig(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	c := awss3.NewFromConfig(cfg, func(o *awss3.Options) { o.UsePathStyle = true })
	for n := 0; n < 3 || time.Now().Before(end); n++ {
		if _, err := c.PutObject(t.Context(), &awss3.PutObjectInput{Bucket: aws.String("orders"), Key: aws.String("1001/sdk"), Body: strings.NewReader("x")}); err != nil {
			t.Fatalf("upload %d: %v", n, err)
		}
	}
	os.Exit(0) // its connections are not a leak
}

// An SDK under `fencegate run` continues beyond its lease's first deadline, and no other process gets credentials.
func TestAnSDKRefreshesItsCredentialsUnderRun(t *testing.T) {
	t.Parallel()
	c := start(t, config(t, testenv.Postgres(t)))
	api, err := httpapi.New(httpapi.Config{URL: "http://" + c.g.Addrs().API, HTTPClient: c.http})
	if err != nil {
		t.Fatal(err)
	}
	testenv.Paced(t, 3*time.Second, func(ttl time.Duration) error { // each renewal must come before the lease ends
		var out bytes.Buffer
		result, err := runner.Run(context.WithoutCancel(t.Context()), runner.Config{
			Client: api, Acquire: httpapi.AcquireRequest{Resource: "orders/1001", TTL: ttl, Wait: 30 * time.Second},
			Command: []string{os.Args[0], "-test.run=^TestTheSDKThatRefreshes$", "-test.count=1"},
			Environ: append(os.Environ(), sdkVariable+"="+time.Now().Add(2*ttl).Format(time.RFC3339Nano), "AWS_ACCESS_KEY_ID=other", "AWS_SECRET_ACCESS_KEY=other"),
			Stdout:  &out, Stderr: &out, Say: t.Logf,
		})
		if err != nil || result.ExitCode != 0 || result.Lost != nil {
			return fmt.Errorf("%+v, %s: %s", result, fmt.Sprint(err), out.String())
		}
		return nil
	})
}
