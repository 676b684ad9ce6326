package credentials_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/gateway/s3/credentials"
)

func TestFingerprintsTellKeysApartTheCurrentOneFirst(t *testing.T) {
	t.Parallel()
	key, other := strings.Repeat("4f", 32), strings.Repeat("50", 32)
	prints := func(text string) (all []string) {
		k, err := credentials.ParseKeyring(text)
		if err != nil {
			t.Fatal(err)
		}
		for id, fingerprint := range k.Fingerprints() {
			all = append(all, id+"="+fingerprint)
		}
		return all
	}
	both, swapped := prints("z:"+key+",a:"+other), prints("a:"+other+",z:"+key)
	if len(both) != 2 || !strings.HasPrefix(both[0], "z=") || both[0] != swapped[1] || both[1] != swapped[0] {
		t.Errorf("%q and %q", both, swapped)
	}
	if same := prints("z:" + other); same[0] == both[0] || strings.Contains(same[0], "5050") || len(same[0]) != len("z=")+16 {
		t.Errorf("%q beside %q", same, both)
	}
}

func TestKeyringsAreCheckedAndShowNoKey(t *testing.T) {
	t.Parallel()
	key, other := strings.Repeat("4f", 32), strings.Repeat("50", 32)
	for _, text := range []string{"", " ", key, "a:" + key[:62], "a:xyz", "a b:" + key, ":" + key, "a:" + key + ",a:" + other, strings.Repeat("k", 33) + ":" + key, "ä:" + key} {
		_, err := credentials.ParseKeyring(text)
		if !errors.Is(err, fence.ErrInvalid) {
			t.Errorf("ParseKeyring(%q): got %v, want ErrInvalid", text, err)
		}
		if err != nil && strings.Contains(err.Error(), key[:16]) {
			t.Errorf("the error shows a key: %v", err)
		}
	}
	k, err := credentials.ParseKeyring("new:" + other + "\nold:" + key)
	if err != nil {
		t.Fatal(err)
	}
	creds, err := k.Issue("orders/1001", 5, time.Now().Add(time.Hour), 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, format := range []string{"%v", "%+v", "%#v", "%s"} {
		shown := fmt.Sprintf(format+format, k, creds)
		if strings.Contains(shown, creds.SecretAccessKey) || strings.Contains(shown, "4f4f") || strings.Contains(shown, "79, 79") {
			t.Errorf("%s shows a secret: %s", format, shown)
		}
	}
	for _, bad := range []struct {
		resource string
		token    fence.Token
	}{{"", 1}, {"a*", 1}, {"a", 0}, {"a", -1}} {
		if _, err := k.Issue(bad.resource, bad.token, time.Now(), 0); !errors.Is(err, fence.ErrInvalid) {
			t.Errorf("Issue(%q, %d): got %v, want ErrInvalid", bad.resource, bad.token, err)
		}
	}
}
