package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/pflag"

	"github.com/fencegate/fencegate/gateway"
)

// registerTLS adds the certificate files of an HTTP port.
func registerTLS(f *pflag.FlagSet, port, name string, cert, key, clientCA *string) {
	f.StringVar(cert, port+"-tls-cert", "", fmt.Sprintf("file with the certificate chain of the %s, which then speaks TLS only (default: no TLS)", name))
	f.StringVar(key, port+"-tls-key", "", "file with its key")
	f.StringVar(clientCA, port+"-tls-client-ca", "", fmt.Sprintf("file with the authorities of clients' certificates: clients of the %s must show one (default: none is asked for)", name))
}

// registerS3 adds the flags of the S3 port.
func (o *serveFlags) registerS3(f *pflag.FlagSet) {
	c := &o.cfg
	f.StringVar(&o.s3Listen, "s3-listen", "127.0.0.1:7480", "address of the S3 port")
	registerTLS(f, "s3", "S3 port", &c.S3TLSCert, &c.S3TLSKey, &c.S3TLSClientCA)
	f.StringVar(&c.S3.Domain, "s3-domain", "", "host name below which buckets are reached as BUCKET.DOMAIN, beside paths (default: by path only)")
	f.IntVar(&c.S3.MaxConnections, "s3-max-connections", 4096, "how many connections the S3 port takes at once; a request on a further one is answered 503 SlowDown")
	f.IntVar(&c.S3.MaxRequests, "s3-max-requests", 1024, "how many requests the S3 port works on at once")
	f.IntVar(&c.S3.MaxUploads, "s3-max-uploads", 256, "how many of them may be uploads or copies of objects or parts")
	f.DurationVar(&c.S3.HeaderTimeout, "s3-header-timeout", 10*time.Second, "how long the headers of a request to the S3 port may take")
	f.DurationVar(&c.S3.StallTimeout, "s3-stall-timeout", time.Minute, "how long nothing may move on a connection to the S3 port while a request is under way, and how long it may be idle")
	f.DurationVar(&c.S3.UploadTimeout, "s3-upload-timeout", 12*time.Hour, "how long an upload may take at the most; it has less if it is small: the stall timeout, and a second for each 32 KiB")
}

// s3Port refuses values that would mean no limit, and enables the port if there is a blob store.
func (o *serveFlags) s3Port(cfg *gateway.Config) error {
	if min(cfg.S3.MaxConnections, cfg.S3.MaxRequests, cfg.S3.MaxUploads) < 1 {
		return usage(errors.New("--s3-max-connections, --s3-max-requests and --s3-max-uploads must be 1 or more"))
	}
	if min(cfg.S3.HeaderTimeout, cfg.S3.StallTimeout, cfg.S3.UploadTimeout) <= 0 {
		return usage(errors.New("--s3-header-timeout, --s3-stall-timeout and --s3-upload-timeout must be more than 0"))
	}
	if cfg.BlobDir != "" {
		cfg.S3Listen = o.s3Listen
	}
	return nil
}
