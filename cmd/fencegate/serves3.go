package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/pflag"

	"github.com/fencegate/fencegate/gateway"
)

// tlsFlags are the certificate files of an HTTP port.
type tlsFlags struct{ cert, key, clientCA string }

func (t *tlsFlags) register(f *pflag.FlagSet, port, name string) {
	f.StringVar(&t.cert, port+"-tls-cert", "", fmt.Sprintf("file with the certificate chain of the %s, which then speaks TLS only (default: no TLS)", name))
	f.StringVar(&t.key, port+"-tls-key", "", "file with its key")
	f.StringVar(&t.clientCA, port+"-tls-client-ca", "", fmt.Sprintf("file with the authorities of clients' certificates: clients of the %s must show one (default: none is asked for)", name))
}

// s3Flags are those of the S3 port.
type s3Flags struct {
	listen, domain                 string
	tls                            tlsFlags
	connections, requests, uploads int
	header, stall, upload          time.Duration
}

func (o *s3Flags) register(f *pflag.FlagSet) {
	f.StringVar(&o.listen, "s3-listen", "127.0.0.1:7480", "address of the S3 port")
	o.tls.register(f, "s3", "S3 port")
	f.StringVar(&o.domain, "s3-domain", "", "host name below which buckets are reached as BUCKET.DOMAIN, beside paths (default: by path only)")
	f.IntVar(&o.connections, "s3-max-connections", 4096, "how many connections the S3 port takes at once; a request on a further one is answered 503 SlowDown")
	f.IntVar(&o.requests, "s3-max-requests", 1024, "how many requests the S3 port works on at once")
	f.IntVar(&o.uploads, "s3-max-uploads", 256, "how many of them may be uploads of objects or parts")
	f.DurationVar(&o.header, "s3-header-timeout", 10*time.Second, "how long the headers of a request to the S3 port may take")
	f.DurationVar(&o.stall, "s3-stall-timeout", time.Minute, "how long nothing may move on a connection to the S3 port while a request is under way, and how long it may be idle")
	f.DurationVar(&o.upload, "s3-upload-timeout", 12*time.Hour, "how long an upload may take at the most; it has less if it is small: the stall timeout, and a second for each 32 KiB")
}

// into puts them where the gateway reads them.
func (o *s3Flags) into(cfg *gateway.Config) error {
	if min(o.connections, o.requests, o.uploads) < 1 {
		return usage(errors.New("--s3-max-connections, --s3-max-requests and --s3-max-uploads must be 1 or more"))
	}
	if min(o.header, o.stall, o.upload) <= 0 {
		return usage(errors.New("--s3-header-timeout, --s3-stall-timeout and --s3-upload-timeout must be more than 0"))
	}
	cfg.S3TLSCert, cfg.S3TLSKey, cfg.S3TLSClientCA = o.tls.cert, o.tls.key, o.tls.clientCA
	cfg.S3Domain = o.domain
	cfg.S3MaxConnections, cfg.S3MaxRequests, cfg.S3MaxUploads = o.connections, o.requests, o.uploads
	cfg.S3HeaderTimeout, cfg.S3StallTimeout, cfg.S3UploadTimeout = o.header, o.stall, o.upload
	if cfg.BlobDir != "" {
		cfg.S3Listen = o.listen
	}
	return nil
}
