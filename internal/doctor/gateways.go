package doctor

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/fencegate/fencegate/internal/tlsfiles"
	"github.com/fencegate/fencegate/wire"
)

// gateway is one of the examined gateways.
type gateway struct {
	name  string // its base URL
	base  *url.URL
	token string
	http  *http.Client

	keys  []wire.KeyStatus    // its master keys; empty: unknown
	chain []*x509.Certificate // that it showed
}

// examineGateways checks whether each gateway is ready, and whether it accepts the bearer token. It compares the master
// keys of the gateways that report them.
func examineGateways(ctx context.Context, cfg Config) []Finding {
	http := gatewayClient(cfg.GatewayTLS)
	defer http.CloseIdleConnections()
	addresses := strings.Split(cfg.GatewayURL, ",")
	gateways, found := make([]gateway, len(addresses)), make([][]Finding, len(addresses))
	var looks sync.WaitGroup
	for i, address := range addresses {
		gateways[i] = gateway{name: fmt.Sprintf("address %d of --gateway", i+1), token: cfg.Token, http: http}
		looks.Go(func() { found[i] = gateways[i].examine(ctx, strings.TrimSpace(address)) })
	}
	looks.Wait()
	var all []Finding
	for _, f := range found {
		all = append(all, f...)
	}
	return append(all, compareKeys(gateways)...)
}

// gatewayClient follows no redirect, as no command does: the token could leave the address that it is meant for.
func gatewayClient(certificates *tls.Config) *http.Client {
	return &http.Client{
		Transport:     &http.Transport{Proxy: http.ProxyFromEnvironment, TLSClientConfig: certificates},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// examine uses the token only for the last check.
func (g *gateway) examine(ctx context.Context, address string) []Finding {
	const check, reachable = "gateway.ready", "gateway.reachable"
	base, err := url.Parse(address)
	if err != nil || (base.Scheme != "http" && base.Scheme != "https") || base.Host == "" || base.User != nil || base.RawQuery != "" || base.Fragment != "" {
		return []Finding{g.fail(reachable, "the address is not of the form http://host:port", "Correct --gateway or FENCEGATE_GATEWAY.")}
	}
	g.base, g.name = base, base.Redacted()
	code, body, err := g.get(ctx, "readyz", false)
	if moved, ok := errors.AsType[*redirectError](err); ok {
		return []Finding{g.moved(reachable, moved)}
	}
	if untrusted, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return []Finding{g.fail(reachable, untrusted.Error(), "Renew the gateway's certificate (--api-tls-cert), name the gateway as it does, or make its authority known by --ca or on this machine (SSL_CERT_FILE).")}
	}
	if err != nil {
		return []Finding{g.fail(reachable, err.Error(), "Start the gateway, or correct --gateway.")}
	}
	found := []Finding{ok(reachable, "%s answers", g.name)}
	if said := tlsfiles.Aging(g.chain, time.Now()); said != "" {
		found = append(found, g.warn("gateway.certificate", "its certificate "+said, "Renew the gateway's certificate (--api-tls-cert). It offers a new one without a restart, unless it has only a copy of the file."))
	}
	var answer struct{ Status, Detail any } // "ready", or, in a problem, a number
	understood := json.Unmarshal(body, &answer) == nil
	switch {
	case code == http.StatusOK && understood && answer.Status == "ready":
		found = append(found, ok(check, "%s: ready", g.name))
	case code == http.StatusOK:
		return append(found, g.fail(check, "it answers, but not as a gateway does", "See whether the address is that of a gateway's HTTP API, and not of another port, server or proxy."))
	default:
		why := strings.TrimSpace(string(body[:min(len(body), 500)]))
		if detail, ok := answer.Detail.(string); ok && detail != "" {
			why = detail
		}
		found = append(found, g.fail(check, fmt.Sprintf("not ready (%d): %s", code, why), "Do what it says; the other findings may say more."))
	}
	return append(found, g.examineToken(ctx)...)
}

// examineToken tries the bearer token, if there is one. A gateway may report its keys without one.
func (g *gateway) examineToken(ctx context.Context) []Finding {
	const check = "gateway.token"
	code, body, err := g.get(ctx, "v1/status", g.token != "")
	if err == nil && code == http.StatusOK {
		var status wire.Status
		if json.Unmarshal(body, &status) == nil {
			g.keys = status.Keys
		}
	}
	moved, redirected := errors.AsType[*redirectError](err)
	switch {
	case g.token == "":
		return nil
	case redirected:
		return []Finding{g.moved(check, moved)}
	case err != nil:
		return []Finding{g.fail(check, "could not be checked: "+err.Error(), "See why the gateway does not answer: its log, its load; or look again with a longer --patience.")}
	case code == http.StatusUnauthorized:
		return []Finding{g.fail(check, "the bearer token is not accepted", "Correct FENCEGATE_TOKEN or --token-file: it is what the gateway has in its --token-file, or a token of a principal (--principals), which may have expired.")}
	case code == http.StatusForbidden: // a right is missing: the token is valid
		return []Finding{ok(check, "%s: the bearer token is accepted", g.name)}
	case code != http.StatusOK:
		return []Finding{g.warn(check, fmt.Sprintf("could not be checked: the gateway answers %d to /v1/status", code), "Look again later; the gateway's log may say more.")}
	}
	return []Finding{ok(check, "%s: the bearer token is accepted", g.name)}
}

// get requests a path below the base.
func (g *gateway) get(ctx context.Context, path string, authorized bool) (code int, body []byte, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, g.base.JoinPath(path).String(), nil)
	if err != nil {
		return 0, nil, err
	}
	if authorized {
		req.Header.Set("Authorization", "Bearer "+g.token)
	}
	resp, err := g.http.Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.TLS != nil {
		g.chain = resp.TLS.PeerCertificates
	}
	if resp.StatusCode >= 300 && resp.StatusCode < 400 {
		return resp.StatusCode, nil, &redirectError{code: resp.StatusCode, to: target(resp)}
	}
	body, err = io.ReadAll(io.LimitReader(resp.Body, 1<<16))
	return resp.StatusCode, body, err
}

// redirectError is an answer that names another address.
type redirectError struct {
	code int
	to   string
}

func (e *redirectError) Error() string {
	return fmt.Sprintf("it answers %d and redirects to %s", e.code, e.to)
}

// target returns the address that a redirect names, without a password.
func target(resp *http.Response) string {
	to, err := resp.Location()
	if err != nil {
		return "no address"
	}
	return to.Redacted()
}

func (g *gateway) moved(check string, e *redirectError) Finding {
	return g.fail(check, e.Error(), "Name the address that answers for the gateway as --gateway: no command follows a redirect.")
}

func (g *gateway) fail(check, found, do string) Finding { return fail(check, g.name+": "+found, do) }

func (g *gateway) warn(check, found, do string) Finding { return warn(check, g.name+": "+found, do) }

// compareKeys checks that every gateway knows the first master
// key of every other, with which that one issues credentials.
func compareKeys(gateways []gateway) []Finding {
	const check = "gateway.keys"
	var tell []gateway
	for _, g := range gateways {
		if len(g.keys) > 0 {
			tell = append(tell, g)
		}
	}
	if len(gateways) < 2 {
		return nil
	}
	var found []Finding
	for _, g := range gateways {
		if len(g.keys) == 0 {
			found = append(found, g.warn(check, "it does not tell its master keys, so they are not compared", "Give doctor a token of a principal that may inspect everything; see the findings of this gateway above."))
		}
	}
	const do = "Give all gateways of the group the same file as --master-key-file, and restart those that had another."
	for _, issuer := range tell {
		for _, other := range tell {
			for i, key := range issuer.keys {
				switch known := slices.Contains(other.keys, key); {
				case known:
				case i == 0:
					found = append(found, fail(check, fmt.Sprintf("%s does not have the master key %q of %s, so it refuses the handles and S3 credentials that the latter issues", other.name, key.ID, issuer.name), do))
				default:
					found = append(found, warn(check, fmt.Sprintf("%s does not have the master key %q, with which %s does not issue: it refuses what was issued with it and has not ended, if that is an older key", other.name, key.ID, issuer.name),
						do+" While a newer key is handed out, this ends with the restart of the last gateway."))
				}
			}
		}
	}
	if found == nil {
		found = []Finding{ok(check, "%d gateways have the same master keys", len(tell))}
	}
	return found
}
