package gateway

import (
	"strings"
	"testing"
	"time"

	"github.com/fencegate/fencegate/gateway/api"
	"github.com/fencegate/fencegate/gateway/s3/credentials"
)

// What the API issues is what the S3 port reads from the credentials.
func TestIssuedCredentialsCarryTheirTermsAndTheirEnd(t *testing.T) {
	t.Parallel()
	keyring, err := credentials.ParseKeyring("k1:" + strings.Repeat("5a", 32))
	if err != nil {
		t.Fatal(err)
	}
	expires := time.Unix(2_000_000_000, 0)
	for want, terms := range map[credentials.Terms]api.CredentialTerms{
		0:                     {},
		credentials.WhileHeld: {WhileHeld: true},
		credentials.OwnKeys:   {OwnKeys: true},
		credentials.ReadOnly:  {ReadOnly: true},
		credentials.EndHeld:   {EndHeld: true},
	} {
		terms.Principal = "worker"
		creds, err := issuer{keyring}.Issue("orders/1", 5, expires, terms)
		if err != nil {
			t.Fatal(err)
		}
		s, err := keyring.Open(creds.SessionToken)
		if err != nil || s.Resource != "orders/1" || s.Token != 5 || s.Terms != want || s.Principal != "worker" || !s.Expires.Equal(expires) || !creds.ExpiresAt.Equal(expires) {
			t.Errorf("%+v: %+v, %v; expires %v", terms, s, err, creds.ExpiresAt)
		}
	}
}
