//go:build unix

package gateway_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awsconfig "github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/credentials"
	awss3 "github.com/aws/aws-sdk-go-v2/service/s3"

	httpapi "github.com/fencegate/fencegate/client"
	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/gateway"
	"github.com/fencegate/fencegate/gateway/access"
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
	cfg := config(t, pg)
	c, other := start(t, cfg), start(t, cfg)
	l := c.acquire("orders/1001", "30s")
	creds := c.want(http.StatusOK, "POST", "/v1/leases/credentials", map[string]string{"handle": l.handle})
	if err := c.put(creds, "1001/a", "held"); err != nil {
		t.Fatal(err)
	}
	c.runOut(l, pg)
	if c.locked("orders/1001") {
		t.Error("the lease has not run out")
	}
	creds.Body["endpoint_url"] = "http://" + other.g.Addrs().S3 // which does not remember until when the lease was held
	if err := other.put(creds, "1001/a", "late"); err == nil || !strings.Contains(err.Error(), "StaleFencingToken") {
		t.Errorf("a write after the lease: %v", err)
	}
	if a := c.want(http.StatusOK, "GET", "/v1/resources/orders/1001", nil); a.text("ended_at") == "" {
		t.Errorf("the grant has not ended: %v", a.Body)
	}
	if _, err := c.connect(pg, l).Exec(t.Context(), updateOrder, "late"); err == nil || !strings.Contains(err.Error(), "ZF001") {
		t.Errorf("a row under that grant: %v", err)
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

const sdkVariable = "FENCEGATE_TEST_SDK"

// The next test runs this under a lease: aws-sdk-go-v2 with its default settings uploads, and again once it has newer
// credentials.
func TestTheSDKThatRefreshes(t *testing.T) {
	if os.Getenv(sdkVariable) == "" {
		return // not run by the next test
	}
	cfg, err := awsconfig.LoadDefaultConfig(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	c := awss3.NewFromConfig(cfg, func(o *awss3.Options) { o.UsePathStyle = true })
	first, err := cfg.Credentials.Retrieve(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, newer := range []bool{false, true} {
		testenv.Eventually(t, "the SDK has newer credentials", func() bool {
			now, err := cfg.Credentials.Retrieve(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			return !newer || now.AccessKeyID != first.AccessKeyID
		})
		if _, err := c.PutObject(t.Context(), &awss3.PutObjectInput{Bucket: aws.String("orders"), Key: aws.String("1001/sdk"), Body: strings.NewReader("x")}); err != nil {
			t.Fatalf("with newer credentials %t: %v", newer, err)
		}
	}
	os.Exit(0) // its connections are not a leak
}

// nearItsEnd is a source whose leases seem to end soon, but late enough for a busy machine.
type nearItsEnd struct{ leasing.Source }

func (s nearItsEnd) Inspect(ctx context.Context, resources ...string) ([]leasing.Inspection, error) {
	all, err := s.Source.Inspect(ctx, resources...)
	for i := range all {
		all[i].TTL = min(all[i].TTL, 25*time.Second)
	}
	return all, err
}

// An SDK under `fencegate run` gets new credentials before those that it has end with the lease, and no other process
// gets any.
func TestAnSDKRefreshesItsCredentialsUnderRun(t *testing.T) {
	t.Parallel()
	cfg := config(t, testenv.Postgres(t))
	sourceOfItsOwn(t, &cfg)
	open := cfg.Leases
	cfg.Leases = func(armer leasing.Armer) (leasing.Source, error) {
		source, err := open(armer)
		return nearItsEnd{source}, err
	}
	cfg.InitNodes, cfg.KeyPrefix = false, ""
	c := start(t, cfg)
	var out bytes.Buffer
	result, err := runner.Run(t.Context(), runner.Config{
		Client: c.api(), Acquire: httpapi.AcquireRequest{Resource: "orders/1001", TTL: time.Minute},
		Command: []string{os.Args[0], "-test.run=^TestTheSDKThatRefreshes$", "-test.count=1"},
		Environ: append(os.Environ(), sdkVariable+"=1", "AWS_ACCESS_KEY_ID=other", "AWS_SECRET_ACCESS_KEY=other"),
		Stdout:  &out, Stderr: &out, Say: t.Logf,
	})
	if err != nil || result.ExitCode != 0 || result.Lost != nil {
		t.Errorf("%+v, %v: %s", result, err, out.String())
	}
}

// foreign verifies the tokens "jwt of NAME" of an external issuer.
type foreign struct{}

func (foreign) Verify(_ context.Context, token string) (access.Identity, error) {
	name, ok := strings.CutPrefix(token, "jwt of ")
	if !ok {
		return access.Identity{}, access.ErrUnknown
	}
	return access.Identity{Issuer: "idp", Claims: map[string][]string{"sub": {name}}, Expires: time.Now().Add(time.Hour)}, nil
}

// get reads an object.
func (c *client) get(creds answer, key string) error {
	s3 := awss3.New(awss3.Options{
		Region: creds.text("region"), BaseEndpoint: aws.String(creds.text("endpoint_url")), UsePathStyle: true, HTTPClient: c.http,
		Credentials: credentials.NewStaticCredentialsProvider(creds.text("access_key_id"), creds.text("secret_access_key"), creds.text("session_token")),
	})
	out, err := s3.GetObject(c.t.Context(), &awss3.GetObjectInput{Bucket: aws.String("orders"), Key: aws.String(key)})
	if err != nil {
		return err
	}
	defer func() { _ = out.Body.Close() }()
	_, err = io.Copy(io.Discard, out.Body)
	return err
}

// The static credentials of a principal whose token expires end with the lease, for reads as well as writes.
func TestStaticCredentialsOfATokenThatExpiresReadNothingOnceTheLeaseIsOver(t *testing.T) {
	t.Parallel()
	pg := testenv.Postgres(t)
	rules := []access.Rule{may("*", access.Acquire, access.Revoke, access.S3Read)}
	all, err := access.New([]access.Definition{
		{Name: "issued", Issued: []access.Claims{{Issuer: "idp", Equal: map[string]string{"sub": "issued"}}}, Rules: rules},
		principal("own", rules...),
	}, access.VerifiedBy(foreign{}))
	if err != nil {
		t.Fatal(err)
	}
	cfg := config(t, pg)
	cfg.Principals = all
	c := start(t, cfg)
	for token, ends := range map[string]bool{"jwt of issued": true, "own": false} {
		c.token = token
		key := fmt.Sprint(ends)
		l := c.acquire("orders/"+key, "30s")
		creds := c.want(http.StatusOK, "POST", "/v1/leases/credentials", map[string]string{"handle": l.handle})
		if err := errors.Join(c.put(creds, key+"/a", "x"), c.get(creds, key+"/a")); err != nil {
			t.Fatalf("%s: under the lease: %v", token, err)
		}
		c.runOut(l, pg)
		if !ends {
			if err := c.get(creds, key+"/a"); err != nil {
				t.Errorf("%s: %v; its token does not expire", token, err)
			}
			continue
		}
		testenv.Eventually(t, "the reads have ended", func() bool {
			err = c.get(creds, key+"/a")
			return err != nil
		})
		if !strings.Contains(err.Error(), "ExpiredToken") {
			t.Errorf("%s: %v; want ExpiredToken", token, err)
		}
	}
}
