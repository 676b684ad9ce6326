package main

import "maps"

// expected lists the tests whose outcome must differ through a relay, and why. A listed test whose outcome does not
// differ is a failure.
var expected = map[string]map[string]string{
	"pgx": certificates,
	"pgx, with a grant": merged(certificates, map[string]string{
		"pgconn.TestConnectWithRuntimeParams": "it drops the connection string's options, and so the grant, which the relay requires",
	}),
}

var certificates = map[string]string{
	"pgconn.TestConnectTLSPasswordProtectedClientCertWithSSLPassword":                noCertificate,
	"pgconn.TestConnectTLSPasswordProtectedClientCertWithGetSSLPasswordConfigOption": noCertificate,
}

const noCertificate = "PostgreSQL logs in by the client's certificate, which cannot pass a relay"

func merged(a, b map[string]string) map[string]string {
	m := maps.Clone(a)
	maps.Copy(m, b)
	return m
}
