//go:build unix

package s3_test

import (
	"strings"
	"testing"
	"time"

	"github.com/fencegate/fencegate/gateway/s3/credentials"
)

func TestCredentialsOutliveARotationOfTheMasterKey(t *testing.T) {
	t.Parallel()
	key, other := strings.Repeat("4f", 32), strings.Repeat("50", 32)
	before, err := credentials.ParseKeyring("old:" + key)
	if err != nil {
		t.Fatal(err)
	}
	rotated, err := credentials.ParseKeyring("new:" + other + ",old:" + key)
	if err != nil {
		t.Fatal(err)
	}
	w := setup(t, func(c *config) { c.Keys = rotated })
	bucket := w.bucket()
	w.arm("orders/1001", 5)
	for _, k := range []*credentials.Keyring{before, rotated} {
		creds, err := k.Issue("orders/1001", 5, time.Now().Add(time.Hour), 0)
		if err != nil {
			t.Fatal(err)
		}
		if len(creds.AccessKeyID) != 20 || !strings.HasPrefix(creds.AccessKeyID, "ASIA") {
			t.Errorf("access key %s", creds.AccessKeyID)
		}
		put(t, w.client(creds), bucket, invoice, "x")
	}
}
