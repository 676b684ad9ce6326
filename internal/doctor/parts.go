package doctor

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencegate/fencegate/gateway/blob"
	"github.com/fencegate/fencegate/gateway/objects"
	"github.com/fencegate/fencegate/gateway/objects/maintenance"
)

const sqlListsBlobs = `SELECT EXISTS (SELECT FROM objects.blobs WHERE state = 'live')`

// examineGateway asks a gateway whether it is ready; neither path needs a token.
func examineGateway(ctx context.Context, address string) []Finding {
	const check = "gateway.ready"
	base, err := url.Parse(address)
	if err != nil || base.Host == "" || base.User != nil || base.RawQuery != "" || base.Fragment != "" {
		return []Finding{fail("gateway.reachable", "the address is not of the form http://host:port", "Correct --gateway or FENCEGATE_GATEWAY.")}
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, base.JoinPath("readyz").String(), nil)
	if err != nil {
		return []Finding{fail("gateway.reachable", err.Error(), "Correct --gateway or FENCEGATE_GATEWAY.")}
	}
	transport := &http.Transport{Proxy: http.ProxyFromEnvironment}
	defer transport.CloseIdleConnections()
	resp, err := (&http.Client{Transport: transport}).Do(req)
	if untrusted, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return []Finding{fail("gateway.reachable", untrusted.Error(), "Renew the gateway's certificate (--api-tls-cert), name the gateway as it does, or make its authority known to this machine (SSL_CERT_FILE).")}
	}
	if err != nil {
		return []Finding{fail("gateway.reachable", err.Error(), "Start the gateway, or correct --gateway.")}
	}
	defer func() { _ = resp.Body.Close() }()
	found := []Finding{ok("gateway.reachable", "%s answers", base.Redacted())}
	body, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<16))
	var answer struct{ Status, Detail any } // status is "ready", or, of a problem, a number
	understood := json.Unmarshal(body, &answer) == nil
	if resp.StatusCode == http.StatusOK {
		if understood && answer.Status == "ready" {
			return append(found, ok(check, "ready"))
		}
		return append(found, fail(check, "it answers, but not as a gateway does", "See whether the address is that of a gateway's HTTP API, and not of another port, server or proxy."))
	}
	why := strings.TrimSpace(string(body[:min(len(body), 500)]))
	if detail, ok := answer.Detail.(string); ok && detail != "" {
		why = detail
	}
	return append(found, fail(check, fmt.Sprintf("not ready (%d): %s", resp.StatusCode, why), "Do what it says; the other findings may say more."))
}

// examineBlobs writes a file as the gateway's blob store does, and removes it.
func examineBlobs(ctx context.Context, location string) []Finding {
	const check = "blobs.writable"
	dir := blob.FolderOf(location)
	if dir == "" {
		store, err := blob.OpenAt(ctx, location)
		if err == nil {
			err = blob.Probe(ctx, store)
		}
		if err != nil {
			return []Finding{fail(check, err.Error(), "See whether endpoint, bucket and credentials are right, and may read, write, list and delete.")}
		}
		return []Finding{ok(check, "the S3 service stores, lists and deletes at once")}
	}
	f, err := os.CreateTemp(dir, ".fencegate-doctor-*")
	if err != nil {
		return []Finding{fail(check, err.Error(), "Make the folder, and let the gateway's user write in it.")}
	}
	_, err = f.WriteString("fencegate doctor\n")
	err = errors.Join(err, f.Sync(), f.Close(), os.Remove(f.Name()))
	if err != nil {
		return []Finding{fail(check, err.Error(), "See whether the disk is full or read-only.")}
	}
	return []Finding{ok(check, "%s takes files as this user", dir)}
}

// examineOwner looks whether a blob store is the database's, and still has its blobs.
func examineOwner(ctx context.Context, url, location string) []Finding {
	const check = "blobs.owner"
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil // examinePostgres says it
	}
	config.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return []Finding{unseen(check, err)}
	}
	defer pool.Close()
	var lists bool
	if err := pool.QueryRow(ctx, sqlListsBlobs).Scan(&lists); err != nil {
		return []Finding{unseen(check, err)}
	}
	store, err := blob.OpenExisting(ctx, location)
	switch {
	case err != nil && lists:
		return []Finding{fail(check, "the database lists blobs, but "+err.Error(), "Mount the disk, or name the folder or bucket that the gateways have as --blobs.")}
	case err != nil: // before a gateway's first start
		return []Finding{ok(check, "no gateway has stored anything yet")}
	}
	if err := maintenance.New(objects.NewDatabase(pool, 0), store).Belongs(ctx); err != nil {
		if foreign, ok := errors.AsType[*maintenance.StoreOwnerError](err); ok {
			return []Finding{fail(check, foreign.Error(), "Check --blobs and --postgres-url first; then see fencegate objects claim --help.")}
		}
		return []Finding{unseen(check, err)}
	}
	return []Finding{ok(check, "the blob store is this database's")}
}
