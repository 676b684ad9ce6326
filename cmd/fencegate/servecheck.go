package main

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/gateway"
	"github.com/fencegate/fencegate/gateway/api"
)

// config returns the gateway's configuration, or the first fault in the flags.
func (o *serveFlags) config(e env, log *slog.Logger) (gateway.Config, error) {
	cfg, all := o.read(e, log)
	if len(all) > 0 {
		return gateway.Config{}, all[0]
	}
	return cfg, nil
}

func first(all []error) error {
	if len(all) > 0 {
		return all[0]
	}
	return nil
}

// judgedHere lists fields of the gateway's configuration that read or checkTogether already checks by their flags.
var judgedHere = []string{
	"BlobDir", "Buckets", "DatabaseKeys", "PG.Rules", "PGSocket", "APITLSClientOptional", "RetireAfter", "SweepRate", "SQLConnections", "times",
	"API.PrincipalRate", "API.MaxConnections", "API.times", "PG.MaxConnections", "PG.timeouts", "S3.RootAccessKey", "S3.MaxConnections", "S3.times",
}

// faults returns all reasons why serve would not start with these options. It reads the files that they name, and
// contacts no server. It omits consequences of faults that are already reported.
func (o *serveFlags) faults(e env, more func(gateway.Config) error) (all []error) {
	if err := o.log.validate(); err != nil {
		all = append(all, err)
	}
	cfg, wrong := o.read(e, slog.New(slog.DiscardHandler))
	all = append(append(all, wrong...), checkTogether(o.options.flags)...)
	told := map[string]bool{}
	for _, err := range all {
		for _, flag := range namedFlags.FindAllString(err.Error(), -1) {
			told[flag] = true
		}
	}
	follows := func(err error) bool {
		return slices.ContainsFunc(namedFlags.FindAllString(err.Error(), -1), func(flag string) bool { return told[flag] })
	}
	some := len(all) > 0
	if some && len(cfg.RedisNodes) == 0 {
		told["--redis"] = true // they are missing, or could not be read
	}
	for _, err := range cfg.Faults() {
		invalid, ok := errors.AsType[*fence.InvalidError](err)
		if some && ok && slices.Contains(judgedHere, invalid.Field) {
			continue
		}
		if err = inFlags(err); !follows(err) {
			all = append(all, err)
		}
	}
	if err := more(cfg); err != nil && !follows(err) {
		all = append(all, err)
	}
	return all
}

// read builds the gateway's configuration from the flags and their files, and returns all faults in them.
func (o *serveFlags) read(e env, log *slog.Logger) (gateway.Config, []error) {
	postgres, all := o.alone()
	refuse := func(err error) {
		if err != nil {
			all = append(all, err)
		}
	}
	cfg := o.cfg
	cfg.Logger, cfg.Version, cfg.PostgresLeases = log, version(), postgres
	if cfg.API.MaxLease = o.maxLease; o.maxLease == 0 {
		cfg.API.MaxLease = api.Unlimited
	}
	refuse(o.s3Port(&cfg))
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
	cfg.KeyPrefix, cfg.DatabaseKeys = o.redis.prefix, o.redis.prefix == "" && !postgres
	return cfg, all
}

// alone checks flags that do not depend on others, and reports whether leases come from PostgreSQL.
func (o *serveFlags) alone() (postgres bool, all []error) {
	postgres, err := fromPostgres(o.lock)
	if err != nil {
		all = append(all, err)
	}
	of, known := o.cfg, err == nil
	for _, f := range []struct {
		wrong  bool
		reason string
	}{
		{of.PostgresURL == "", "--postgres-url is missing (or FENCEGATE_POSTGRES_URL)"},
		{
			postgres && (len(o.redis.addrs) > 0 || o.redis.prefix != "" || of.InitNodes || of.BestEffort),
			"--redis, --redis-prefix, --redis-best-effort and --init are for --lock redis: with --lock postgres there are no Redis nodes",
		},
		{known && !postgres && len(o.redis.addrs) == 0, "--redis is missing (or FENCEGATE_REDIS); with PostgreSQL alone: --lock postgres"},
		{o.masterKeyFile == "", "--master-key-file is missing (or FENCEGATE_MASTER_KEY_FILE)"},
		{of.PG.MaxConnections < 1, "--pg-max-connections must be 1 or more"},
		{of.API.MaxConnections < 1, "--api-max-connections must be 1 or more"},
		{of.SQLConnections < 1, "--sql-connections must be 1 or more"},
		{
			of.PG.LoginTimeout <= 0 || of.PG.FirstByteTimeout <= 0 || of.DrainTimeout <= 0,
			"--pg-login-timeout, --pg-first-byte-timeout and --drain-timeout must be more than 0",
		},
	} {
		if f.wrong {
			all = append(all, usage(errors.New(f.reason)))
		}
	}
	return postgres, all
}

// together lists flags that are needed together; in needing the first needs the second.
var together, needing = [][2]string{
	{"s3-access-key", "s3-secret-key-file"}, {"api-tls-cert", "api-tls-key"}, {"pg-tls-cert", "pg-tls-key"}, {"s3-tls-cert", "s3-tls-key"},
}, [][2]string{
	{"api-tls-client-optional", "api-tls-client-ca"},
	{"api-tls-client-ca", "api-tls-cert"},
	{"pg-tls-client-ca", "pg-tls-cert"},
	{"s3-tls-client-ca", "s3-tls-cert"},
	{"pg-socket", "pg-listen"},
	{"pg-policy", "pg-listen"},
	{"pg-policy-file", "pg-listen"},
	{"pg-proxy-from", "pg-listen"},
	{"pg-advertise", "pg-listen"},
	{"s3-advertise", "blobs"},
	{"bucket", "blobs"},
	{"bucket", "s3-listen"},
}

// checkTogether refuses negative values and missing counterparts of serve's flags, in terms of the flags. The gateway
// would refuse them in terms of its configuration.
func checkTogether(f *pflag.FlagSet) (all []error) {
	given := func(flag string) bool {
		value := f.Lookup(flag).Value.String()
		return value != "" && value != "[]" && value != "false"
	}
	for _, pair := range together {
		if given(pair[0]) != given(pair[1]) {
			all = append(all, usage(fmt.Errorf("--%s and --%s are needed together", pair[0], pair[1])))
		}
	}
	for _, pair := range needing {
		if given(pair[0]) && !given(pair[1]) {
			all = append(all, usage(fmt.Errorf("--%s needs --%s", pair[0], pair[1])))
		}
	}
	f.VisitAll(func(flag *pflag.Flag) {
		if kind := flag.Value.Type(); (kind == "duration" || kind == "int") && strings.HasPrefix(flag.Value.String(), "-") {
			all = append(all, usage(fmt.Errorf("--%s is negative", flag.Name)))
		}
	})
	return all
}
