package main

import (
	"crypto/x509"
	"slices"
	"strings"

	"github.com/fencegate/fencegate/gateway"
	"github.com/fencegate/fencegate/lock"
)

// warnReplaced warns of files whose content is no longer what the gateway uses, and which are read only at a start. cfg
// is what the gateway was started with. The log shows no content.
func (o *serveFlags) warnReplaced(cfg gateway.Config) {
	var replaced []string
	for _, f := range []struct {
		flag, path string
		same       func() (bool, error)
	}{
		{"token-file", o.tokenFile, sameSecret("--token-file", o.tokenFile, cfg.API.BearerToken)},
		{"master-key-file", o.masterKeyFile, func() (bool, error) {
			keys, err := readKeys(o.masterKeyFile)
			return slices.Equal(strings.Fields(keys), strings.Fields(cfg.MasterKey)), err
		}},
		{"s3-secret-key-file", o.s3SecretKeyFile, sameSecret("--s3-secret-key-file", o.s3SecretKeyFile, cfg.S3.RootSecretKey)},
		{"redis-tls-ca", o.redis.ca, func() (bool, error) {
			pool, err := o.redis.authorities()
			return pool.Equal(authoritiesOf(cfg.RedisNodes)), err
		}},
	} {
		switch {
		case f.path == "", f.flag == "token-file" && o.principalsFile != "", f.flag == "redis-tls-ca" && len(cfg.RedisNodes) == 0:
			continue // nothing that only a start reads
		}
		switch same, err := f.same(); {
		case err != nil && o.options.path == "": // with a file of options again has read what the next start needs
			cfg.Logger.Warn("SIGHUP: a file can't be read; its previous content stays in use, but the next start needs it", "error", oneLine(err.Error()))
		case err == nil && !same:
			replaced = append(replaced, f.flag)
		}
	}
	if len(replaced) > 0 {
		cfg.Logger.Warn("SIGHUP: some files have changed, which needs a restart; their previous content stays in use until then", "options", keysOf(o, replaced))
	}
}

func sameSecret(flag, path, used string) func() (bool, error) {
	return func() (bool, error) {
		secret, err := readSecret(flag, path)
		return secret == used, err
	}
}

// authoritiesOf returns the authorities that the nodes' certificates must come from; nil: the system's.
func authoritiesOf(nodes []lock.Node) *x509.CertPool {
	i := slices.IndexFunc(nodes, func(n lock.Node) bool { return n.TLS != nil })
	if i < 0 {
		return nil
	}
	return nodes[i].TLS.RootCAs
}
