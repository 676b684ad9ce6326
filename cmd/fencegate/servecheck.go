package main

import (
	"cmp"
	"errors"
	"log/slog"
	"slices"

	"github.com/fencegate/fencegate/gateway"
	"github.com/fencegate/fencegate/gateway/api"
)

func first(all []error) error { return cmp.Or(append(all, nil)...) }

// faults returns all reasons why serve would not start with these options. It reads the files that they name, and
// contacts no server. It omits consequences of faults that are already reported.
func (o *serveFlags) faults(e env, more func(gateway.Config) error) (all []error) {
	cfg, all := o.read(e, slog.New(slog.DiscardHandler))
	reported := map[string]bool{}
	for _, err := range all {
		for _, flag := range namedFlags.FindAllString(err.Error(), -1) {
			reported[flag] = true
		}
	}
	if len(all) > 0 && len(cfg.RedisNodes) == 0 {
		reported["--redis"] = true // they are missing, or could not be read
	}
	for _, err := range append(cfg.Faults(), more(cfg)) {
		err = o.options.inFlags(err)
		if err != nil && !slices.ContainsFunc(namedFlags.FindAllString(err.Error(), -1), func(flag string) bool { return reported[flag] }) {
			all = append(all, err)
		}
	}
	return all
}

// read builds the gateway's configuration from the flags and their files, and returns all faults in them.
func (o *serveFlags) read(e env, log *slog.Logger) (gateway.Config, []error) {
	all := flagFaults(o.options.table)
	refuse := func(err error) {
		if err != nil && !slices.ContainsFunc(all, func(other error) bool { return other.Error() == err.Error() }) {
			all = append(all, err)
		}
	}
	cfg := o.cfg
	cfg.Logger, cfg.Version, cfg.PostgresLeases = log, version(), o.lock == lockPostgres
	refuse(o.checkSource())
	if cfg.API.MaxLease == 0 {
		cfg.API.MaxLease = api.Unlimited
	}
	if cfg.BlobDir != "" {
		cfg.S3Listen = o.s3Listen
	}
	var err error
	cfg.PG.Rules, err = o.rules()
	refuse(err)
	cfg.PG.ProxyNetworks, err = parseNetworks(splitAll(o.pgProxies))
	refuse(err)
	cfg.Buckets, err = parseBuckets(splitAll(o.buckets))
	refuse(err)
	if o.masterKeyFile != "" {
		cfg.MasterKey, err = readKeys(o.masterKeyFile)
		refuse(err)
	}
	secret := func(flag, path string) (text string, read bool) {
		if path == "" {
			return "", true
		}
		text, err := readSecret(flag, path)
		refuse(err)
		return text, err == nil
	}
	var hasToken bool
	cfg.API.BearerToken, hasToken = secret("--token-file", o.tokenFile)
	cfg.S3.RootSecretKey, _ = secret("--s3-secret-key-file", o.s3SecretKeyFile)
	if hasToken { // the file may refer to the token
		cfg.Principals, err = o.principals(cfg.API.BearerToken, log)
		refuse(err)
	}
	cfg.MetricsPrefixes = splitAll(o.cfg.MetricsPrefixes)
	cfg.RedisNodes, err = o.redis.nodes(e)
	refuse(err)
	cfg.KeyPrefix, cfg.DatabaseKeys = o.redis.prefix, o.redis.prefix == "" && !cfg.PostgresLeases
	return cfg, all
}

// checkSource refuses Redis nodes that are missing, or in the way.
func (o *serveFlags) checkSource() error {
	switch nodes := len(o.redis.addrs) > 0; {
	case o.lock == lockRedis && !nodes:
		return usage(errors.New("--redis is missing (or FENCEGATE_REDIS); with PostgreSQL alone: --lock postgres"))
	case o.lock == lockPostgres && (nodes || o.redis.prefix != "" || o.cfg.InitNodes || o.cfg.BestEffort):
		return usage(errors.New("--redis, --redis-prefix, --redis-best-effort and --init are for --lock redis: with --lock postgres there are no Redis nodes"))
	}
	return nil
}
