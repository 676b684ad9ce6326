package primary

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
)

func TestEachHostOfAnAddressIsThereOnce(t *testing.T) {
	t.Parallel()
	for address, want := range map[string][]string{
		"postgres://u@a:1/d":                                            {"tcp a:1 plain"},
		"postgres://u@a:1/d?sslmode=disable":                            {"tcp a:1 plain"},
		"postgres://u@a:1/d?sslmode=allow":                              {"tcp a:1 plain"},
		"postgres://u@a:1/d?sslmode=prefer":                             {"tcp a:1 plain"},
		"postgres://u@a:1/d?sslmode=require":                            {"tcp a:1 unverified"},
		"postgres://u@a:1/d?sslmode=verify-ca":                          {"tcp a:1 authority"},
		"postgres://u@a:1/d?sslmode=verify-full":                        {"tcp a:1 verified as a"},
		"postgres://u@a:1/d?sslmode=verify-full&sslnegotiation=direct":  {"tcp a:1 verified as a directly"},
		"postgres://u@a:1,b:2/d":                                        {"tcp a:1 plain", "tcp b:2 plain"},
		"postgres://u@a:1,b:2/d?sslmode=verify-full":                    {"tcp a:1 verified as a", "tcp b:2 verified as b"},
		"host=/run/x port=7 user=u sslmode=require":                     {"unix /run/x/.s.PGSQL.7 plain"},
		"host=/run/x,::1,b port=7,8,9 user=u sslmode=disable dbname=d ": {"unix /run/x/.s.PGSQL.7 plain", "tcp [::1]:8 plain", "tcp b:9 plain"},
	} {
		config, err := pgconn.ParseConfig(address)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, u := range hostsOf(config) {
			got = append(got, describe(u))
		}
		if strings.Join(got, "; ") != strings.Join(want, "; ") {
			t.Errorf("%s: %q, want %q", address, got, want)
		}
	}
}

func describe(u Host) string {
	text := u.Network + " " + u.Addr
	switch {
	case u.TLS == nil:
		text += " plain"
	case u.TLS.VerifyPeerCertificate != nil:
		text += " authority"
	case u.TLS.InsecureSkipVerify:
		text += " unverified"
	default:
		text += " verified as " + u.TLS.ServerName
	}
	if u.DirectTLS {
		text += " directly"
	}
	return text
}
