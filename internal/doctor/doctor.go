// Package doctor examines a fencegate installation and says what is wrong, and what to do next.
//
// The guarantee: it leaves no changes (it writes and removes one file if a blob folder is given), it never prints a
// secret, every check has a time limit, and a check that could not run is a finding, never a silent pass.
//
//	findings := doctor.Examine(ctx, doctor.Config{PostgresURL: url, RedisNodes: nodes})
//	if doctor.Worst(findings) == doctor.Fail {
//		…
//	}
//
// Only the parts that the configuration names are examined.
package doctor

import (
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencegate/fencegate/internal/pgtext"
	"github.com/fencegate/fencegate/internal/terminal"
	"github.com/fencegate/fencegate/lock"
)

// Status is the severity of a finding.
type Status int

// The severities.
const (
	OK   Status = iota
	Warn        // works, but not as well or as safely as it could
	Fail        // does not work, or stale writes get through
)

func (s Status) String() string { return [...]string{"OK", "WARN", "FAIL"}[s] }

// MarshalText encodes the status as a word.
func (s Status) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// Finding is the result of one check.
type Finding struct {
	Check  string `json:"check"` // for example "postgresql.roles"; stable across releases
	Status Status `json:"status"`
	Found  string `json:"found"`
	Do     string `json:"do,omitempty"` // what to do; empty if all is well
}

// Config names what is examined. Everything is optional.
type Config struct {
	PostgresURL string        // any login; the gateway's login shows what the gateway sees
	RedisNodes  []lock.Node   // all nodes of the group
	KeyPrefix   string        // of the group's keys; defaults to that of PostgresURL
	GatewayURL  string        // base URL of a gateway's HTTP API; several of one group, separated by commas
	Token       string        // bearer token to try at each gateway; empty: none
	GatewayTLS  *tls.Config   // for the gateways; defaults to the system's CAs
	BlobDir     string        // the gateway's folder for blobs, or its s3:// address
	Patience    time.Duration // for each part; defaults to 10 s
}

// Worst is the most severe status among the findings.
func Worst(findings []Finding) Status {
	worst := OK
	for _, f := range findings {
		worst = max(worst, f.Status)
	}
	return worst
}

// Print writes the findings as text, each with what to do below it.
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

// unseen is the finding of a check that could not run. Missing rights of the login leave the result unknown. Any other
// error (no answer in time, a broken connection, a missing object) would fail a gateway, too.
func unseen(check string, err error) Finding {
	found := "could not be checked: " + pgtext.Of(err)
	if refused, ok := errors.AsType[*pgconn.PgError](err); ok {
		switch {
		case refused.Code == "42501": // insufficient_privilege
			return warn(check, found, "Run doctor as a login that may see it, such as the one that migrates.")
		case strings.HasPrefix(refused.Code, "42"), refused.Code == "3F000": // a missing name
			return fail(check, found, "Run: fencegate migrate up. Where the schema is up to date, somebody has changed it: restore what is missing.")
		}
	}
	return fail(check, found, "See why PostgreSQL does not answer: what it waits for (pg_stat_activity), its log, its load; or look again with a longer --patience.")
}
