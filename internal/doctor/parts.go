package doctor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"

	"github.com/fencegate/fencegate/gateway/blob"
)

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
	if err != nil {
		return []Finding{fail("gateway.reachable", err.Error(), "Start the gateway, or correct --gateway.")}
	}
	defer func() { _ = resp.Body.Close() }()
	found := []Finding{ok("gateway.reachable", "%s answers", base.Redacted())}
	body, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<16))
	if resp.StatusCode == http.StatusOK {
		return append(found, ok(check, "ready"))
	}
	var problem struct{ Detail, Title string }
	why := strings.TrimSpace(string(body))
	if json.Unmarshal(body, &problem) == nil && problem.Detail != "" {
		why = problem.Detail
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
