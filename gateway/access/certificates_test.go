package access_test

import (
	"crypto/x509"
	"errors"
	"testing"
	"time"

	"github.com/fencegate/fencegate/gateway/access"
)

func TestRightsEndWithTheCertificate(t *testing.T) {
	t.Parallel()
	ops := access.Definition{Name: "ops", Certificates: []string{"dns:ops.example"}, Rules: []access.Rule{rule("*", access.Acquire)}}
	all, err := access.New([]access.Definition{ops})
	if err != nil {
		t.Fatal(err)
	}
	var cert *x509.Certificate
	var p *access.Principal
	for validity := 300 * time.Millisecond; ; validity *= 4 { // it may end before it is looked at
		cert = &x509.Certificate{DNSNames: []string{"ops.example"}, NotAfter: time.Now().Add(validity)}
		p, err = all.AuthenticateCertificate(cert)
		if err == nil && p.May(access.Acquire, "a") {
			break
		}
		if validity > 4*time.Second {
			t.Fatalf("%q, %v", p.Name(), err)
		}
	}
	ctx, cancel := p.Lasts(t.Context())
	defer cancel()
	<-ctx.Done()
	if err := p.Check(access.Acquire, "a"); err == nil || err.Error() != "the certificate of ops has expired" || p.MaySome(access.Acquire) {
		t.Errorf("behind its end: %v", err)
	}
	if _, err := all.AuthenticateCertificate(cert); !errors.Is(err, access.ErrUnknown) {
		t.Errorf("a certificate that is over: %v", err)
	}
}
