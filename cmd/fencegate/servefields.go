package main

import (
	"cmp"
	"errors"

	"github.com/fencegate/fencegate/fence"
)

// flagOf names the flag for each field that the gateway, or a part of it, may refuse by itself. checkTogether checks
// combinations of flags.
var flagOf = map[string]string{
	"PostgresURL":    "--postgres-url",
	"SQL URL":        "--sql-url",
	"RedisNodes":     "--redis",
	"nodes":          "--redis nodes",
	"node timeout":   "--node-timeout",
	"max ttl":        "--max-ttl",
	"APIListen":      "--api-listen",
	"PGListen":       "--pg-listen",
	"S3Listen":       "--s3-listen",
	"MetricsListen":  "--metrics-listen",
	"prefixes":       "--metrics-prefix",
	"SweepRecords":   "--sweep-records",
	"PGTLSClientCA":  "--pg-tls-client-ca",
	"S3TLSClientCA":  "--s3-tls-client-ca",
	"APITLSCert":     "--api-tls-cert",
	"APITLSClientCA": "--api-tls-client-ca",
	"PGTLSCert":      "--pg-tls-cert",
	"S3TLSCert":      "--s3-tls-cert",
	"S3.Domain":      "--s3-domain",
	"PGAdvertise":    "--pg-advertise",
	"S3Advertise":    "--s3-advertise",
	"policy":         "--pg-policy",
	"PG.policy":      "--pg-policy (or its file)",
	"keyring":        "--master-key-file",
}

// inFlags rewrites the gateway's refusal of a configuration field in terms of the command line.
func inFlags(err error) error {
	invalid, ok := errors.AsType[*fence.InvalidError](err)
	if !ok {
		return err
	}
	return usage(&fence.InvalidError{Field: cmp.Or(flagOf[invalid.Field], invalid.Field), Reason: invalid.Reason})
}
