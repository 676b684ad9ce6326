//go:build unix

package gateway_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	awss3 "github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/fencegate/fencegate/gateway/access"
	"github.com/fencegate/fencegate/internal/testenv"
)

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
	for name, over := range map[string]func(l lease){
		"released": func(l lease) {
			c.want(http.StatusNoContent, "POST", "/v1/leases/release", map[string]string{"handle": l.handle})
		},
		"revoked": func(l lease) {
			c.want(http.StatusOK, "POST", "/v1/resources/"+l.resource+"/revoke", map[string]string{})
		},
		"another's": func(l lease) { c.acquire(l.resource, "30s", "60s") },
		"run out":   func(lease) {},
	} {
		for token, ends := range map[string]bool{"jwt of issued": true, "own": false} {
			c.token = token
			key := fmt.Sprintf("%x-%t", name, ends)
			begin := map[bool]time.Duration{true: 3 * time.Second, false: 30 * time.Second}[name == "another's" || name == "run out"]
			var l lease
			var creds answer
			testenv.Paced(t, begin, func(ttl time.Duration) (err error) {
				l = c.acquire("orders/"+key, min(ttl, time.Minute).String(), "60s")
				if creds, err = c.expect(http.StatusOK, "POST", "/v1/leases/credentials", map[string]string{"handle": l.handle}); err == nil {
					err = errors.Join(c.put(creds, key+"/a", "x"), c.get(creds, key+"/a"))
				}
				if err != nil {
					return fmt.Errorf("%s, %s: under the lease: %w", name, token, err)
				}
				return nil
			})
			over(l)
			if !ends {
				if err := c.get(creds, key+"/a"); err != nil {
					t.Errorf("%s, %s: %v; its token does not expire", name, token, err)
				}
				continue
			}
			testenv.Eventually(t, name+": the reads have ended", func() bool {
				err = c.get(creds, key+"/a")
				return err != nil
			})
			if !strings.Contains(err.Error(), "ExpiredToken") {
				t.Errorf("%s: %v; want ExpiredToken", name, err)
			}
		}
	}
}
