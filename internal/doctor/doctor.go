// Package doctor looks at what a fencegate installation rests on and says what
// is wrong, in words that name the next step.
//
// The guarantee: it changes nothing that outlives it (it writes and removes one
// file where a blob folder is given), it never prints a secret, every look has
// an end, and what it could not look at is a finding too, never a silent pass.
//
//	findings := doctor.Examine(ctx, doctor.Config{PostgresURL: url, RedisNodes: nodes})
//	if doctor.Worst(findings) == doctor.Fail {
//		…
//	}
//
// Only what the configuration names is examined.
package doctor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencegate/fencegate/internal/pgtext"
	"github.com/fencegate/fencegate/internal/terminal"
	"github.com/fencegate/fencegate/lock"
)

// Status is how grave a finding is.
type Status int

// The three of them.
const (
	OK   Status = iota
	Warn        // works, but not as well or as safely as it could
	Fail        // does not work, or stale writes get through
)

func (s Status) String() string { return [...]string{"OK", "WARN", "FAIL"}[s] }

// MarshalText makes it a word in JSON.
func (s Status) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// Finding is what one check found.
type Finding struct {
	Check  string `json:"check"` // such as "postgresql.roles": the same over releases
	Status Status `json:"status"`
	Found  string `json:"found"`
	Do     string `json:"do,omitempty"` // what to do; empty where all is well
}

// Config names what is examined; everything is optional.
type Config struct {
	PostgresURL string        // any login; the gateway's sees what the gateway sees
	RedisNodes  []lock.Node   // all nodes of the group
	KeyPrefix   string        // of the group's keys; defaults to that of PostgresURL
	GatewayURL  string        // base URL of a gateway's HTTP API; several of one group, separated by commas
	Token       string        // bearer token to try at each gateway; empty: none is tried
	HTTPClient  *http.Client  // for the gateways; defaults to one with the system's authorities
	BlobDir     string        // the gateway's folder for blobs, or its s3:// address
	Patience    time.Duration // for each part; defaults to 10 s
}

// Examine looks at every part that the configuration names, all at the same
// time, and returns the findings in a fixed order.
func Examine(ctx context.Context, cfg Config) []Finding {
	if cfg.Patience <= 0 {
		cfg.Patience = 10 * time.Second
	}
	var parts []func(context.Context) []Finding
	if cfg.PostgresURL != "" {
		parts = append(parts, func(ctx context.Context) []Finding { return examinePostgres(ctx, cfg.PostgresURL) })
	}
	if len(cfg.RedisNodes) > 0 {
		parts = append(parts, func(ctx context.Context) []Finding { return examineRedis(ctx, cfg) })
	}
	if cfg.GatewayURL != "" {
		parts = append(parts, func(ctx context.Context) []Finding { return examineGateways(ctx, cfg) })
	}
	if cfg.BlobDir != "" {
		parts = append(parts, func(ctx context.Context) []Finding { return examineBlobs(ctx, cfg.BlobDir) })
	}
	if cfg.BlobDir != "" && cfg.PostgresURL != "" {
		parts = append(parts, func(ctx context.Context) []Finding { return examineOwner(ctx, cfg.PostgresURL, cfg.BlobDir) })
	}
	found := make([][]Finding, len(parts))
	var looks sync.WaitGroup
	for i, part := range parts {
		looks.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, cfg.Patience)
			defer cancel()
			found[i] = part(ctx)
		})
	}
	looks.Wait()
	var all []Finding
	for _, f := range found {
		all = append(all, f...)
	}
	return all
}

// Worst is the gravest status among the findings.
func Worst(findings []Finding) Status {
	worst := OK
	for _, f := range findings {
		worst = max(worst, f.Status)
	}
	return worst
}

// Print writes the findings for people, one to a line, each with what to do
// below it.
func Print(w io.Writer, findings []Finding) error {
	var b strings.Builder
	for _, f := range findings {
		fmt.Fprintf(&b, "%-4s  %s: %s\n", f.Status, f.Check, terminal.Line(f.Found))
		if f.Do != "" {
			fmt.Fprintf(&b, "      → %s\n", terminal.Line(f.Do))
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// PrintJSON writes the findings as {"status": …, "findings": […]}.
func PrintJSON(w io.Writer, findings []Finding) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	return enc.Encode(struct {
		Status   Status    `json:"status"`
		Findings []Finding `json:"findings"`
	}{Worst(findings), findings})
}

func ok(check, format string, args ...any) Finding {
	return Finding{Check: check, Status: OK, Found: fmt.Sprintf(format, args...)}
}

func warn(check, found, do string) Finding {
	return Finding{Check: check, Status: Warn, Found: found, Do: do}
}

func fail(check, found, do string) Finding {
	return Finding{Check: check, Status: Fail, Found: found, Do: do}
}

// unseen is the finding of a check that could not look. What a login may not see
// leaves the rest in doubt; everything else (no answer in time, a connection that
// broke, something that is not there) does not work for a gateway either.
func unseen(check string, err error) Finding {
	found := "could not be checked: " + pgtext.Of(err)
	if refused, ok := errors.AsType[*pgconn.PgError](err); ok {
		switch {
		case refused.Code == "42501": // insufficient_privilege
			return warn(check, found, "Run doctor as a login that may see it, such as the one that migrates.")
		case strings.HasPrefix(refused.Code, "42"), refused.Code == "3F000": // a name that is not there
			return fail(check, found, "Run: fencegate migrate up. Where the schema is up to date, somebody has changed it: restore what is missing.")
		}
	}
	return fail(check, found, "See why PostgreSQL does not answer: what it waits for (pg_stat_activity), its log, its load; or look again with a longer --patience.")
}
