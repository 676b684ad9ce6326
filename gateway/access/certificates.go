package access

import (
	"crypto/x509"
	"fmt"
	"strings"

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

func validateCertificates(all []string) error {
	if len(all) > maxProofs {
		return &fence.InvalidError{Field: "certificates", Reason: fmt.Sprintf("are %d; at most %d are allowed", len(all), maxProofs)}
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
