package main

import (
	"errors"
	"strings"

	"github.com/fencegate/fencegate/fence"
)

// flagOf names the flag of each field of the gateway's configuration that its
// refusals name.
var flagOf = strings.NewReplacer(
	"PostgresURL", "--postgres-url",
	"SQL URL", "--sql-url",
	"RedisNodes have", "--redis has",
	"APIListen", "--api-listen",
	"PGListen", "--pg-listen",
	"S3Listen", "--s3-listen",
	"BlobDir", "--blobs",
	"SweepRate", "--sweep-rate",
	"SweepGrace", "--sweep-grace",
	"S3AccessKey", "--s3-access-key",
	"S3SecretKey", "--s3-secret-key-file",
	"Buckets need the S3 port", "--bucket needs the S3 port, and so --blobs",
	"PGMaxConnections", "--pg-max-connections",
	"PGMaxUserConnections", "--pg-max-user-connections",
	"APITLSCert", "--api-tls-cert",
	"APITLSKey", "--api-tls-key",
	"APITLSClientCA", "--api-tls-client-ca",
	"PGTLSCert", "--pg-tls-cert",
	"PGTLSKey", "--pg-tls-key",
	"PGTLSClientCA", "--pg-tls-client-ca",
	"S3TLSCert", "--s3-tls-cert",
	"S3TLSKey", "--s3-tls-key",
	"S3TLSClientCA", "--s3-tls-client-ca",
	"times include a negative one", "one of the flags that take a time is negative",
	"keyring", "--master-key-file",
)

// inFlags says what the gateway refuses of its configuration in the words of the
// command line.
func inFlags(err error) error {
	if invalid, ok := errors.AsType[*fence.InvalidError](err); ok {
		return usage(errors.New(flagOf.Replace(invalid.Error())))
	}
	return err
}
