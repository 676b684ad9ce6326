package main

import (
	"cmp"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/pflag"

	"github.com/fencegate/fencegate/fence"
)

// flagOf names the flag behind each field that the gateway, or a part of it, may
// refuse by itself. Whether flags go together is said by checkTogether.
var flagOf = map[string]string{
	"PostgresURL":    "--postgres-url",
	"SQL URL":        "--sql-url",
	"RedisNodes":     "--redis",
	"node timeout":   "--node-timeout",
	"max ttl":        "--max-ttl",
	"APIListen":      "--api-listen",
	"PGListen":       "--pg-listen",
	"S3Listen":       "--s3-listen",
	"MetricsListen":  "--metrics-listen",
	"prefixes":       "--metrics-prefix",
	"APITLSCert":     "--api-tls-cert",
	"APITLSClientCA": "--api-tls-client-ca",
	"PGTLSCert":      "--pg-tls-cert",
	"S3TLSCert":      "--s3-tls-cert",
	"S3.Domain":      "--s3-domain",
	"PGAdvertise":    "--pg-advertise",
	"S3Advertise":    "--s3-advertise",
	"policy":         "--pg-policy",
	"PG.policy":      "--pg-policy (or its file)",
	"lease rule":     "--pg-lease",
	"keyring":        "--master-key-file",
}

// inFlags says what the gateway refuses of its configuration in the words of the
// command line.
func inFlags(err error) error {
	invalid, ok := errors.AsType[*fence.InvalidError](err)
	if !ok {
		return err
	}
	return usage(&fence.InvalidError{Field: cmp.Or(flagOf[invalid.Field], invalid.Field), Reason: invalid.Reason})
}

// checkTogether refuses flags of serve that need one another, and negative ones,
// before the gateway does it in the words of its own configuration.
func checkTogether(f *pflag.FlagSet) error {
	given := func(flag string) bool {
		value := f.Lookup(flag).Value.String()
		return value != "" && value != "[]" && value != "false"
	}
	for _, pair := range [][2]string{
		{"s3-access-key", "s3-secret-key-file"}, {"api-tls-cert", "api-tls-key"}, {"pg-tls-cert", "pg-tls-key"}, {"s3-tls-cert", "s3-tls-key"},
	} {
		if given(pair[0]) != given(pair[1]) {
			return usage(fmt.Errorf("--%s and --%s are needed together", pair[0], pair[1]))
		}
	}
	for _, pair := range [][2]string{
		{"api-tls-client-optional", "api-tls-client-ca"},
		{"api-tls-client-ca", "api-tls-cert"},
		{"pg-tls-client-ca", "pg-tls-cert"},
		{"s3-tls-client-ca", "s3-tls-cert"},
		{"pg-socket", "pg-listen"},
		{"pg-policy", "pg-listen"},
		{"pg-lease", "pg-listen"},
		{"pg-policy-file", "pg-listen"},
		{"pg-proxy-from", "pg-listen"},
		{"pg-advertise", "pg-listen"},
		{"s3-advertise", "blobs"},
		{"bucket", "blobs"},
	} {
		if given(pair[0]) && !given(pair[1]) {
			return usage(fmt.Errorf("--%s needs --%s", pair[0], pair[1]))
		}
	}
	var negative error
	f.VisitAll(func(flag *pflag.Flag) {
		if kind := flag.Value.Type(); (kind == "duration" || kind == "int") && strings.HasPrefix(flag.Value.String(), "-") {
			negative = usage(fmt.Errorf("--%s is negative", flag.Name))
		}
	})
	return negative
}
