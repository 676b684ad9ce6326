// Package demo runs fencegate's story with real processes: worker A acquires a lease and is stopped beyond it; worker B
// takes over and does the work; A resumes and is refused, by PostgreSQL and by the object store's gateway.
//
// Nothing is simulated. The workers are separate processes with an ordinary PostgreSQL driver and an ordinary S3 SDK,
// the pause is SIGSTOP, and [Run] fails unless A was refused in both places and B's work is intact.
package demo

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencegate/fencegate/client"
	"github.com/fencegate/fencegate/wire"
)

// The workers work on the row 1001, and on an object in a bucket whose rule says
// that the key 1001/invoice.txt needs a grant of <bucket>/1001.
const (
	bucketRule = "prefix:1"
	objectKey  = "1001/invoice.txt"
)

func resourceOf(bucket string) string { return bucket + "/1001" }

// Config names the gateway, and says how to start a worker.
type Config struct {
	Client   *client.Client
	Bucket   string   // the bucket, and the first part of the resource's name: <bucket>/1001
	AdminURL string   // PostgreSQL, directly: a login that may create and protect a table
	Worker   []string // command line that starts a worker: its name is appended
	Environ  []string // environment of the workers: gateway, token, login of PostgreSQL
	Login    string   // the workers' login, which gets its rights on the table
	TTL      time.Duration
	Screen   *Screen
}

// The table has its own schema, which the demo drops.
const (
	createTable = `
DROP SCHEMA IF EXISTS fencegate_demo CASCADE;
CREATE SCHEMA fencegate_demo;
CREATE TABLE fencegate_demo.orders (id bigint PRIMARY KEY, status text NOT NULL);
INSERT INTO fencegate_demo.orders VALUES (1001, 'new')`
	protectTable = `SELECT fence.protect('fencegate_demo.orders', under => $1)`
	dropTable    = `DROP SCHEMA IF EXISTS fencegate_demo CASCADE`
	readStatus   = `SELECT status FROM fencegate_demo.orders WHERE id = 1001`
	writeStatus  = `UPDATE fencegate_demo.orders SET status = $1 WHERE id = 1001`
)

const cleanUpTimeout = 5 * time.Second

func prepare(ctx context.Context, cfg Config) error {
	conn, err := pgx.Connect(ctx, cfg.AdminURL)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	login := pgx.Identifier{cfg.Login}.Sanitize()
	for _, sql := range []string{
		createTable,
		"GRANT USAGE ON SCHEMA fencegate_demo TO " + login,
		"GRANT SELECT, UPDATE ON fencegate_demo.orders TO " + login,
	} {
		if _, err := conn.Exec(ctx, sql); err != nil {
			return err
		}
	}
	if _, err := conn.Exec(ctx, protectTable, cfg.Bucket+"/"); err != nil {
		return err
	}
	_, err = cfg.Client.SetBucket(ctx, cfg.Bucket, wire.BucketRequest{Rule: bucketRule})
	return err
}

// cleanUp is best effort; the next demo starts by doing it again.
func cleanUp(ctx context.Context, cfg Config) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanUpTimeout)
	defer cancel()
	conn, err := pgx.Connect(ctx, cfg.AdminURL)
	if err != nil {
		return
	}
	_, _ = conn.Exec(ctx, dropTable)
	_ = conn.Close(ctx)
}

// mismatch returns an error for an unexpected step.
func mismatch(format string, args ...any) error {
	return fmt.Errorf("the demo did not go as it must: "+format, args...)
}
