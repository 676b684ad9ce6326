package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"strings"
	"sync"
	"unicode"

	"github.com/spf13/cobra"

	"github.com/fencegate/fencegate/client"
	"github.com/fencegate/fencegate/internal/regular"
)

func newRoot(e env) *cobra.Command {
	root := &cobra.Command{
		Use:   "fencegate",
		Short: "Refuse stale writers at the storage itself",
		Long: `fencegate guards PostgreSQL and object storage with fencing tokens: a writer whose
lease is over is refused by the storage, however long it slept.

Every flag can also come from the environment: --postgres-url is FENCEGATE_POSTGRES_URL.
Exit codes are listed in docs/cli.md.`,
		Example: `  fencegate demo                                   watch a paused writer being refused
  fencegate dev                                    everything in one process, no set-up
  fencegate run --resource orders/1001 -- ./job    a job that cannot write once its lease is over`,
		Version:       version(),
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          cobra.NoArgs,
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			return e.prepare(cmd)
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usage(err) })
	root.AddCommand(
		newDemo(e), newDev(e), newServe(e), newConfig(e), newMigrate(), newProtect(), newUnprotect(),
		newRun(e), newLease(e), newResources(e), newRevoke(e), newSessions(e), newActivity(e), newBuckets(e), newObjects(e), newFence(e), newDoctor(e), newHealth(e), newNodes(e), newPrincipals(e), newVersion(e), newDemoWorker(e),
	)
	usageArgs(root)
	return root
}

// usageArgs turns argument errors into usage errors.
func usageArgs(cmd *cobra.Command) {
	check := cmd.Args
	if check != nil {
		cmd.Args = func(cmd *cobra.Command, args []string) error {
			if err := check(cmd, args); err != nil {
				return usage(err)
			}
			return nil
		}
	}
	for _, sub := range cmd.Commands() {
		usageArgs(sub)
	}
}

func version() string {
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" && info.Main.Version != "(devel)" {
		return info.Main.Version
	}
	return "development"
}

// gatewayFlags are the flags of commands that talk to a gateway.
type gatewayFlags struct {
	url       string
	tokenFile string

	ca, cert, key string
}

const defaultGateway = "http://127.0.0.1:7070"

func (g *gatewayFlags) register(cmd *cobra.Command) {
	cmd.Flags().StringVar(&g.url, "gateway", defaultGateway, "base URL of the gateway's HTTP API; or those of several gateways, separated by commas: one that serves is asked")
	g.registerAccess(cmd)
}

// registerAccess adds the flags for the bearer token and for TLS.
func (g *gatewayFlags) registerAccess(cmd *cobra.Command) {
	cmd.Flags().StringVar(&g.tokenFile, "token-file", "", "file with the gateway's bearer token, read again for each request (or the token itself in FENCEGATE_TOKEN)")
	cmd.Flags().StringVar(&g.ca, "ca", "", "file with the authorities that the gateway's certificate must come from (default: the system's)")
	cmd.Flags().StringVar(&g.cert, "cert", "", "file with the certificate chain to show the gateway, where it asks for one")
	cmd.Flags().StringVar(&g.key, "key", "", "file with the certificate's key")
}

// bearer returns the bearer token; "": none. Its file may be a pipe, which is read once.
func (g *gatewayFlags) bearer(ctx context.Context, e env) (string, error) {
	token, _ := e.lookup(tokenVariable)
	if g.tokenFile != "" {
		text, err := readOnce(ctx, "--token-file", g.tokenFile)
		if err != nil {
			return "", err
		}
		if token, err = secretIn("--token-file", g.tokenFile, text); err != nil {
			return "", err
		}
	}
	if strings.ContainsFunc(token, unicode.IsControl) { // not allowed in a header
		return "", usage(errors.New("the bearer token (--token-file or FENCEGATE_TOKEN) contains a control character or a line break"))
	}
	return token, nil
}

func (g *gatewayFlags) client(ctx context.Context, e env) (*client.Client, error) {
	token, err := g.bearer(ctx, e)
	if err != nil {
		return nil, err
	}
	var now func() string
	if info, err := os.Stat(g.tokenFile); err == nil && info.Mode().IsRegular() { // a pipe has its token once
		now = tokenNow(g.tokenFile, token)
	}
	cfg := client.Config{URL: g.url, Token: token, TokenNow: now, UserAgent: "fencegate/" + version()}
	if g.certified() {
		if cfg.TLS, err = g.tls(ctx); err != nil {
			return nil, err
		}
	}
	c, err := client.New(cfg)
	if err != nil {
		return nil, withHint(err, exitUsage, "--gateway or FENCEGATE_GATEWAY names the gateway's HTTP API, such as http://127.0.0.1:7070")
	}
	return c, nil
}

// tokenNow reads a token's file again for each request: some issuers' tokens expire within the hour, and a command
// under run may take longer. If the file can't be read, or its token can't be sent, the previous token stays.
func tokenNow(path, token string) func() string {
	var mu sync.Mutex
	return func() string {
		mu.Lock()
		defer mu.Unlock()
		if next, err := readSecret("--token-file", path); err == nil && !strings.ContainsFunc(next, unicode.IsControl) {
			token = next
		}
		return token
	}
}

// certified reports whether a flag of tls is given.
func (g *gatewayFlags) certified() bool { return g.ca != "" || g.cert != "" || g.key != "" }

// tls returns the CA and the client certificate of the flags.
func (g *gatewayFlags) tls(ctx context.Context) (*tls.Config, error) {
	switch {
	case (g.cert == "") != (g.key == ""):
		return nil, usage(errors.New("--cert and --key are needed together"))
	case strings.HasPrefix(g.url, "http://"):
		return nil, usage(errors.New("--ca and --cert are for a gateway with TLS: --gateway https://…"))
	}
	cfg := &tls.Config{MinVersion: tls.VersionTLS12}
	if g.ca != "" {
		pem, err := readOnce(ctx, "--ca", g.ca)
		if err != nil {
			return nil, err
		}
		cfg.RootCAs = x509.NewCertPool()
		if !cfg.RootCAs.AppendCertsFromPEM(pem) {
			return nil, usage(fmt.Errorf("--ca: %s holds no certificate in PEM", g.ca))
		}
	}
	if g.cert != "" {
		chain, err := readOnce(ctx, "--cert", g.cert)
		if err != nil {
			return nil, err
		}
		key, err := readOnce(ctx, "--key", g.key)
		if err != nil {
			return nil, err
		}
		pair, err := tls.X509KeyPair(chain, key)
		if err != nil {
			return nil, usage(fmt.Errorf("--cert and --key: %w", err))
		}
		cfg.Certificates = []tls.Certificate{pair}
	}
	return cfg, nil
}

// readOnce reads a file that a command reads at its start. It may be a pipe, such as /dev/stdin: ctx ends the wait.
func readOnce(ctx context.Context, flag, path string) ([]byte, error) {
	type result struct {
		text []byte
		err  error
	}
	done := make(chan result, 1)
	go func() {
		text, err := os.ReadFile(path) // opening a pipe blocks, too
		done <- result{text, err}
	}()
	select {
	case r := <-done:
		if r.err != nil {
			return nil, usage(errors.New(flag + ": " + r.err.Error()))
		}
		return r.text, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// readSecret reads a file that holds one secret on its only line.
func readSecret(flag, path string) (string, error) {
	text, err := regular.Read(path, regular.MaxBytes)
	if err != nil {
		return "", usage(errors.New(flag + ": " + err.Error()))
	}
	return secretIn(flag, path, text)
}

// secretIn returns the secret on a file's only line.
func secretIn(flag, path string, text []byte) (string, error) {
	secret := strings.TrimSpace(string(text))
	if secret == "" || strings.ContainsAny(secret, "\r\n") {
		return "", usage(errors.New(flag + ": " + path + " does not hold exactly one line"))
	}
	return secret, nil
}

// readKeys reads a file with one master key to a line.
func readKeys(path string) (string, error) {
	text, err := regular.Read(path, regular.MaxBytes)
	if err != nil {
		return "", usage(errors.New("--master-key-file: " + err.Error()))
	}
	return string(text), nil
}
