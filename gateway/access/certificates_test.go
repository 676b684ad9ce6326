package access_test

import (
	"crypto/x509"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencegate/fencegate/gateway/access"
)

func TestRightsEndWithTheCertificate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ops := access.Definition{Name: "ops", Certificates: []string{"dns:ops.example"}, Rules: []access.Rule{rule("*", access.Acquire)}}
		all, err := access.New([]access.Definition{ops})
		if err != nil {
			t.Fatal(err)
		}
		cert := &x509.Certificate{DNSNames: []string{"ops.example"}, NotAfter: time.Now().Add(time.Hour)}
		p, err := all.AuthenticateCertificate(cert)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := p.Lasts(t.Context())
		defer cancel()
		time.Sleep(time.Hour - 1)
		if !p.May(access.Acquire, "a") || ctx.Err() != nil {
			t.Errorf("before its end: %v", ctx.Err())
		}
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		if ctx.Err() == nil {
			t.Error("what the certificate opened goes on")
		}
		if err := p.Check(access.Acquire, "a"); err == nil || err.Error() != "the certificate of ops has expired" || p.MaySome(access.Acquire) {
			t.Errorf("behind its end: %v", err)
		}
		if _, err := all.AuthenticateCertificate(cert); !errors.Is(err, access.ErrUnknown) {
			t.Errorf("a certificate that is over: %v", err)
		}
	})
}
