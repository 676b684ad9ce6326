package demo

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awsconfig "github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/smithy-go"
	smithyhttp "github.com/aws/smithy-go/transport/http"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencegate/fencegate/client"
	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/internal/runner"
)

// Event is one line that a worker reports.
type Event struct {
	Name    string      `json:"event"`
	OK      bool        `json:"ok"`
	Token   fence.Token `json:"token,omitempty"`
	Code    string      `json:"code,omitempty"`   // SQLSTATE or S3 code of a refusal
	Status  int         `json:"status,omitempty"` // HTTP status of a refused upload
	Message string      `json:"message,omitempty"`
	Text    string      `json:"text,omitempty"`
}

// Worker runs one of the demo's processes: it acquires, reads, and then executes the commands "write TEXT", "bypass
// TEXT", "download" and "delete" from its input. It renews its lease while it runs, but checks neither the deadline nor
// a clock before it writes, as most code does.
type Worker struct {
	Client *client.Client
	Bucket string
	Direct string // PostgreSQL's own address, not the gateway's
	Name   string
	TTL    time.Duration
	Wait   time.Duration
	In     io.Reader
	Out    io.Writer

	sql *pgx.Conn
	s3  *s3.Client
}

// Run runs the worker until the input ends.
func (w *Worker) Run(ctx context.Context) error {
	lease, err := w.Client.Acquire(ctx, client.AcquireRequest{Resource: resourceOf(w.Bucket), TTL: w.TTL, Wait: w.Wait, Holder: "worker " + w.Name})
	if err != nil {
		w.report(Event{Name: "acquired", Message: err.Error()})
		return err
	}
	if err := w.connect(ctx, lease); err != nil {
		w.report(Event{Name: "acquired", Message: err.Error()})
		return err
	}
	defer func() { _ = w.sql.Close(context.WithoutCancel(ctx)) }()
	defer w.keep(ctx, lease)()
	w.report(Event{Name: "acquired", OK: true, Token: lease.Token})

	var status string
	err = w.sql.QueryRow(ctx, readStatus).Scan(&status)
	w.report(withSQLError(Event{Name: "read", Text: status}, err))

	lines := bufio.NewScanner(w.In)
	for lines.Scan() {
		verb, text, _ := strings.Cut(lines.Text(), " ")
		switch verb {
		case "write":
			_, err := w.sql.Exec(ctx, writeStatus, text)
			w.report(withSQLError(Event{Name: "sql"}, err))
			w.report(w.upload(ctx, text))
		case "bypass":
			w.report(withSQLError(Event{Name: "bypass"}, w.bypass(ctx, text)))
		case "download":
			w.report(w.download(ctx))
		case "delete":
			_, err := w.s3.DeleteObject(ctx, &s3.DeleteObjectInput{Bucket: aws.String(w.Bucket), Key: aws.String(objectKey)})
			w.report(withS3Error(Event{Name: "delete"}, err))
		}
	}
	return lines.Err()
}

// keep renews the lease until stop is called. The worker ignores a failed renewal.
func (w *Worker) keep(ctx context.Context, lease client.Lease) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(w.TTL / 3)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				_, _ = w.Client.Renew(ctx, lease.Handle, w.TTL)
			case <-ctx.Done():
				return
			}
		}
	}()
	return func() { cancel(); <-ended }
}

// connect puts the lease's grant into the environment, as `fencegate run` does, where driver and SDK find it.
func (w *Worker) connect(ctx context.Context, lease client.Lease) error {
	environ, err := runner.Environ(ctx, w.Client, lease, os.Environ())
	if err != nil {
		return err
	}
	for _, kv := range environ {
		name, value, _ := strings.Cut(kv, "=")
		if err := os.Setenv(name, value); err != nil {
			return err
		}
	}
	if w.sql, err = pgx.Connect(ctx, ""); err != nil {
		return err
	}
	cfg, err := awsconfig.LoadDefaultConfig(ctx)
	if err != nil {
		return err
	}
	w.s3 = s3.NewFromConfig(cfg, func(o *s3.Options) { o.UsePathStyle = true })
	return nil
}

// bypass writes on a connection straight to PostgreSQL. Driver and grant are the same: PGOPTIONS carries the grant.
func (w *Worker) bypass(ctx context.Context, text string) error {
	conn, err := pgx.Connect(ctx, w.Direct)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	_, err = conn.Exec(ctx, writeStatus, text)
	return err
}

func (w *Worker) upload(ctx context.Context, text string) Event {
	_, err := w.s3.PutObject(ctx, &s3.PutObjectInput{
		Bucket: aws.String(w.Bucket), Key: aws.String(objectKey), Body: strings.NewReader(text),
	})
	return withS3Error(Event{Name: "upload"}, err)
}

func (w *Worker) download(ctx context.Context) Event {
	e := Event{Name: "download"}
	out, err := w.s3.GetObject(ctx, &s3.GetObjectInput{Bucket: aws.String(w.Bucket), Key: aws.String(objectKey)})
	if err != nil {
		return withS3Error(e, err)
	}
	defer func() { _ = out.Body.Close() }()
	b, err := io.ReadAll(out.Body)
	e.Text = string(b)
	return withS3Error(e, err)
}

func (w *Worker) report(e Event) {
	b, _ := json.Marshal(e)
	_, _ = w.Out.Write(append(b, '\n'))
}

func withSQLError(e Event, err error) Event {
	e.OK = err == nil
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok {
		e.Code, e.Message = pg.Code, pg.Message
	} else if err != nil {
		e.Message = err.Error()
	}
	return e
}

func withS3Error(e Event, err error) Event {
	e.OK = err == nil
	if err == nil {
		return e
	}
	e.Message = err.Error()
	if api, ok := errors.AsType[smithy.APIError](err); ok {
		e.Code, e.Message = api.ErrorCode(), api.ErrorMessage()
	}
	if response, ok := errors.AsType[*smithyhttp.ResponseError](err); ok {
		e.Status = response.HTTPStatusCode()
	}
	return e
}
