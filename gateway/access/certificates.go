package access

import (
	"crypto/x509"
	"fmt"
	"strings"
	"time"

	"github.com/fencegate/fencegate/fence"
)

// kindsOfNames are the kinds of certificate names by which a principal may be known.
var kindsOfNames = []string{"dns:", "uri:", "email:"}

// namesOf returns a certificate's subject alternative names, in the form of [Definition.Certificates]. It ignores the
// common name.
func namesOf(cert *x509.Certificate) []string {
	names := make([]string, 0, len(cert.DNSNames)+len(cert.URIs)+len(cert.EmailAddresses))
	for _, name := range cert.DNSNames {
		names = append(names, "dns:"+strings.ToLower(name))
	}
	for _, u := range cert.URIs {
		names = append(names, "uri:"+u.String())
	}
	for _, address := range cert.EmailAddresses {
		names = append(names, "email:"+address)
	}
	return names
}

// AuthenticateCertificate returns the principal of a verified certificate. The error is [ErrUnknown] if no principal
// has one of its names, or two have. The principal's rights end with the certificate.
func (ps *Principals) AuthenticateCertificate(cert *x509.Certificate) (*Principal, error) {
	names := namesOf(cert)
	r := ps.byCertificate(names)
	if r == nil || !time.Now().Before(cert.NotAfter) {
		return &Principal{}, ErrUnknown
	}
	name := r.definition.Name
	return &Principal{name: name, ended: r.ended, expires: cert.NotAfter, proof: "certificate", now: func() *rights {
		if r := ps.byCertificate(names); r != nil && r.definition.Name == name && time.Now().Before(cert.NotAfter) {
			return r
		}
		return nil
	}}, nil
}

// byCertificate returns the rights of the principal with one of the names; nil if two principals match.
func (ps *Principals) byCertificate(names []string) (found *rights) {
	known := ps.current.Load().certificates
	for _, name := range names {
		switch r := known[name]; {
		case r == nil || r == found:
		case found != nil:
			return nil
		default:
			found = r
		}
	}
	return found
}

// KnowsCertificates reports whether any principal is known by a certificate.
func (ps *Principals) KnowsCertificates() bool { return len(ps.current.Load().certificates) > 0 }

func validateCertificates(all []string) error {
	if len(all) > maxTokens {
		return &fence.InvalidError{Field: "certificates", Reason: fmt.Sprintf("are %d; at most %d are allowed", len(all), maxTokens)}
	}
	for _, one := range all {
		kind, name, _ := strings.Cut(one, ":")
		known := false
		for _, k := range kindsOfNames {
			known = known || kind+":" == k
		}
		switch {
		case !known || name == "":
			return &fence.InvalidError{Field: "certificates", Reason: fmt.Sprintf("have %q; a name is dns:NAME, uri:URI or email:ADDRESS, as a subject alternative name has it", one)}
		case strings.Contains(name, "*"):
			return &fence.InvalidError{Field: "certificates", Reason: fmt.Sprintf("have %q; names are compared whole, without *", one)}
		case kind == "dns" && name != strings.ToLower(name):
			return &fence.InvalidError{Field: "certificates", Reason: fmt.Sprintf("have %q; write it in small letters", one)}
		}
	}
	return nil
}
