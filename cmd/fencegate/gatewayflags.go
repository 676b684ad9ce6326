package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"unicode"

	"github.com/spf13/cobra"

	"github.com/fencegate/fencegate/client"
)

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
