// Command rows-and-files publishes a report's file and its rows in
// one transaction under one lease: readers see both or neither.
//
// Reporter A stages its file and pauses. Reporter B takes over and publishes. When A resumes and publishes, PostgreSQL
// refuses: neither B's row nor B's file changes.
//
//	go run ./cmd/fencegate dev --ephemeral -- go run ./examples/rows-and-files
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/pgfence"
	"github.com/fencegate/fencegate/fence/s3fence"
)

func main() {
	if err := run(); err != nil {
		log.Fatal(err)
	}
}

// The bucket's rule is "key": writing reports/2026-11.csv needs
// a lease of that name. The table's rows need the same lease.
const (
	bucket   = "reports"
	key      = "2026-11.csv"
	resource = bucket + "/" + key
)

func run() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	db, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL")) // a login in the role fence_writer
	if err != nil {
		return err
	}
	defer db.Close()
	if err := createTable(ctx, db); err != nil {
		return err
	}

	a, err := newReporter(ctx, db, "A", "500ms")
	if err != nil {
		return err
	}
	staged, err := a.stage(ctx, "lines by A\n")
	if err != nil {
		return err
	}
	fmt.Printf("A has %s, staged its file, and pauses\n", a.grant)

	b, err := newReporter(ctx, db, "B", "30s") // waits until A's lease has expired
	if err != nil {
		return err
	}
	defer b.release(context.WithoutCancel(ctx))
	theirs, err := b.stage(ctx, "lines by B\n")
	if err != nil {
		return err
	}
	if err := b.publish(ctx, theirs); err != nil {
		return err
	}
	fmt.Printf("B has %s, and published rows and file\n", b.grant)

	err = a.publish(ctx, staged)
	if !errors.Is(err, fence.ErrStale) {
		return fmt.Errorf("reporter A should have been refused as stale; got: %w", err)
	}
	fmt.Printf("A was refused: %v\n", err)

	var author string
	if err := db.QueryRow(ctx, "SELECT author FROM report_rows WHERE month = '2026-11'").Scan(&author); err != nil {
		return err
	}
	file, err := b.download(ctx)
	if err != nil {
		return err
	}
	fmt.Printf("the row is by %s, the file holds %q\n", author, file)
	if author != "B" || file != "lines by B\n" {
		return errors.New("row or file was changed by A")
	}
	return nil
}

// reporter has a lease: its grant for PostgreSQL, and its credentials for the S3 port.
type reporter struct {
	name   string
	db     *pgxpool.Pool
	handle string
	grant  fence.Grant
	files  *s3fence.Client
	s3     *s3.Client
}

func newReporter(ctx context.Context, db *pgxpool.Pool, name, ttl string) (*reporter, error) {
	var lease struct{ Grant, Handle string }
	if err := call(ctx, "/v1/leases", map[string]string{"resource": resource, "ttl": ttl, "wait": "10s"}, &lease); err != nil {
		return nil, err
	}
	grant, err := fence.ParseGrant(resource, lease.Grant)
	if err != nil {
		return nil, err
	}
	var creds struct {
		AccessKeyID     string `json:"access_key_id"`
		SecretAccessKey string `json:"secret_access_key"`
		SessionToken    string `json:"session_token"`
		EndpointURL     string `json:"endpoint_url"`
		Region          string `json:"region"`
	}
	if err := call(ctx, "/v1/leases/credentials", map[string]string{"handle": lease.Handle}, &creds); err != nil {
		return nil, err
	}
	files, err := s3fence.New(s3fence.Config{
		Endpoint: creds.EndpointURL, Region: creds.Region,
		AccessKeyID: creds.AccessKeyID, SecretAccessKey: creds.SecretAccessKey, SessionToken: creds.SessionToken,
	})
	return &reporter{name: name, db: db, handle: lease.Handle, grant: grant, files: files, s3: s3.New(s3.Options{
		Region: creds.Region, BaseEndpoint: aws.String(creds.EndpointURL), UsePathStyle: true,
		Credentials: credentials.NewStaticCredentialsProvider(creds.AccessKeyID, creds.SecretAccessKey, creds.SessionToken),
	})}, err
}

// stage uploads the file without making it visible.
func (r *reporter) stage(ctx context.Context, text string) (s3fence.Staged, error) {
	return r.files.Stage(ctx, bucket, key, strings.NewReader(text), int64(len(text)), s3fence.ContentType("text/csv"))
}

// publish writes the row and makes the file visible, in one transaction.
func (r *reporter) publish(ctx context.Context, staged s3fence.Staged) error {
	return pgfence.InTx(ctx, r.db, r.grant, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `INSERT INTO report_rows VALUES ('2026-11', $1)
			ON CONFLICT (month) DO UPDATE SET author = EXCLUDED.author`, r.name)
		if err != nil {
			return err
		}
		return s3fence.Publish(ctx, tx, staged)
	})
}

func (r *reporter) download(ctx context.Context) (string, error) {
	out, err := r.s3.GetObject(ctx, &s3.GetObjectInput{Bucket: aws.String(bucket), Key: aws.String(key)})
	if err != nil {
		return "", err
	}
	defer out.Body.Close()
	text, err := io.ReadAll(out.Body)
	return string(text), err
}

func createTable(ctx context.Context, db *pgxpool.Pool) error {
	for _, sql := range []string{
		"DROP TABLE IF EXISTS report_rows",
		"CREATE TABLE report_rows (month text PRIMARY KEY, author text NOT NULL)",
		"SELECT fence.protect('report_rows', per_row => $$'reports/' || month || '.csv'$$)",
	} {
		if _, err := db.Exec(ctx, sql); err != nil {
			return err
		}
	}
	return nil
}

// release ends the lease, so that the next one need not wait for its TTL.
func (r *reporter) release(ctx context.Context) {
	if err := call(ctx, "/v1/leases/release", map[string]string{"handle": r.handle}, nil); err != nil {
		log.Print(err)
	}
}

// call posts JSON to the gateway's HTTP API and reads its JSON reply, unless that is nil.
func call(ctx context.Context, path string, body, reply any) error {
	b, err := json.Marshal(body)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, os.Getenv("FENCEGATE_GATEWAY")+path, bytes.NewReader(b))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode >= http.StatusBadRequest {
		problem, _ := io.ReadAll(resp.Body)
		return fmt.Errorf("%s: %s: %s", path, resp.Status, problem)
	}
	if reply == nil {
		return nil
	}
	return json.NewDecoder(resp.Body).Decode(reply)
}
