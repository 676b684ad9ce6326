package tlsfiles

import (
	"bytes"
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"slices"
	"time"

	"github.com/fencegate/fencegate/internal/regular"
)

// Soon is how long before its end a certificate is warned of; one of a short life in the last fifth of it.
const Soon = 14 * 24 * time.Hour

// Aging says that a chain of certificates has expired, is not valid yet, or ends soon; "" if none of that is so.
func Aging(chain []*x509.Certificate, now time.Time) string {
	var said string
	var first time.Time // to end
	for _, c := range chain {
		if now.Before(c.NotBefore) {
			return "is not valid before " + c.NotBefore.UTC().Format(time.RFC3339)
		}
		left := c.NotAfter.Sub(now)
		if left > min(Soon, c.NotAfter.Sub(c.NotBefore)/5) || !first.IsZero() && !c.NotAfter.Before(first) {
			continue
		}
		first, said = c.NotAfter, "expires on "
		if left < 0 {
			said = "expired on "
		}
		said += c.NotAfter.UTC().Format(time.RFC3339)
	}
	return said
}

// Warnings says what [Aging] says of the chain, and of one client authority of each subject. Files that can't be read
// are left to [Files.Load].
func (f Files) Warnings(now time.Time) (all []string) {
	if said := Aging(certificatesOf(f.Cert), now); said != "" {
		all = append(all, "certificate "+f.Cert+" "+said)
	}
	for _, c := range authorities(f.ClientCA, now) {
		if said := Aging([]*x509.Certificate{c}, now); said != "" {
			all = append(all, "client authority "+f.ClientCA+" ("+c.Subject.String()+") "+said)
		}
	}
	return all
}

// authorities returns one certificate of each subject: the one that ends last among those valid now, or among all if
// none is. Older ones stay in the file until the last certificates that they issued have gone; a successor is added
// ahead of its time.
func authorities(file string, now time.Time) []*x509.Certificate {
	invalid := func(c *x509.Certificate) int {
		if now.Before(c.NotBefore) || now.After(c.NotAfter) {
			return 1
		}
		return 0
	}
	all := certificatesOf(file)
	slices.SortFunc(all, func(a, b *x509.Certificate) int {
		return cmp.Or(bytes.Compare(a.RawSubject, b.RawSubject), invalid(a)-invalid(b), b.NotAfter.Compare(a.NotAfter))
	})
	return slices.CompactFunc(all, func(a, b *x509.Certificate) bool { return bytes.Equal(a.RawSubject, b.RawSubject) })
}

func certificatesOf(file string) (all []*x509.Certificate) {
	if file == "" {
		return nil
	}
	text, err := regular.Read(file, regular.MaxBytes)
	if err != nil {
		return nil
	}
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		if c, err := x509.ParseCertificate(block.Bytes); err == nil && block.Type == "CERTIFICATE" {
			all = append(all, c)
		}
	}
	return all
}

// NotAfter returns when the chain that a configuration of [Files.Load] offers now ends: the earliest end in it.
func NotAfter(cfg *tls.Config) (first time.Time) {
	now, err := cfg.GetConfigForClient(nil)
	if err != nil || len(now.Certificates) == 0 {
		return first
	}
	for _, der := range now.Certificates[0].Certificate {
		if c, err := x509.ParseCertificate(der); err == nil && (first.IsZero() || c.NotAfter.Before(first)) {
			first = c.NotAfter
		}
	}
	return first
}
