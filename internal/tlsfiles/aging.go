package tlsfiles

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
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

// Warnings says of each file whose certificates are too old, or too new, what [Aging] says of them. Files that can't be
// read are left to [Files.Load].
func (f Files) Warnings(now time.Time) (all []string) {
	if said := Aging(certificatesOf(f.Cert), now); said != "" {
		all = append(all, "certificate "+f.Cert+" "+said)
	}
	var newest []*x509.Certificate // older authorities stay in a file until their last certificates have gone
	for _, c := range certificatesOf(f.ClientCA) {
		if len(newest) == 0 || c.NotAfter.After(newest[0].NotAfter) {
			newest = []*x509.Certificate{c}
		}
	}
	if said := Aging(newest, now); said != "" {
		all = append(all, "client authority "+f.ClientCA+" "+said)
	}
	return all
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
