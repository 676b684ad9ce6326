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
