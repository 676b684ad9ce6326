package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// A write's cost in PostgreSQL: rows, WAL, space and flushes. There is a single client, so that no commits are shared.

const writesOf = 256 // of each kind; blobs are reserved 128 at a time

// books are PostgreSQL's counters.
type books struct {
	inserted, updated, hot, deleted int64 // rows of all tables
	records, images, syncs          int64 // of the WAL
	wal, room                       int64 // bytes
}

const sqlBooks = `SELECT t.inserted, t.updated, t.hot, t.deleted, w.wal_records, w.wal_fpi, w.wal_sync, pg_current_wal_insert_lsn() - '0/0',
  (SELECT sum(pg_total_relation_size(c.oid)) FROM pg_class c WHERE c.relnamespace = 'objects'::regnamespace AND c.relkind = 'r')::bigint
FROM pg_stat_wal w, (SELECT sum(n_tup_ins)::bigint AS inserted, sum(n_tup_upd)::bigint AS updated, sum(n_tup_hot_upd)::bigint AS hot,
  sum(n_tup_del)::bigint AS deleted FROM pg_stat_user_tables) t`

// settled is longer than an idle PostgreSQL session delays reporting its counters.
const settled = 11 * time.Second

func (w *world) books(ctx context.Context) (b books, err error) {
	select {
	case <-time.After(settled):
	case <-ctx.Done():
		return b, ctx.Err()
	}
	err = w.db.Pool.QueryRow(ctx, sqlBooks).Scan(&b.inserted, &b.updated, &b.hot, &b.deleted, &b.records, &b.images, &b.syncs, &b.wal, &b.room)
	return b, err
}

// writeKind is a kind of write. do does the n-th.
type writeKind struct {
	name string // "": only preparation for the next kind
	do   func(ctx context.Context, c *client, n int64) error
	keep bool // in a bucket that keeps all versions
}

// asks sends a request, without a body or with a text.
func (c *client) asks(ctx context.Context, method, path, text string, header ...string) (string, error) {
	var body io.Reader
	if text != "" {
		body = strings.NewReader(text)
	}
	status, answer, err := c.send(ctx, method, "/"+bucket+"/"+path, body, int64(len(text)), header...)
	if err == nil && status/100 != 2 {
		err = fmt.Errorf("%s %s: %d %.300s", method, path, status, answer)
	}
	return answer, err
}

// write is a kind with a single request.
func write(name, method, query, text string, keys string, header ...string) writeKind {
	return writeKind{name: name, do: func(ctx context.Context, c *client, n int64) error {
		_, err := c.asks(ctx, method, "w/"+keys+strconv.FormatInt(n, 10)+query, text, header...)
		return err
	}}
}

func writeKinds() []writeKind {
	small, large := strings.Repeat("x", 4<<10), strings.Repeat("x", 128<<10)
	const tags = "<Tagging><TagSet><Tag><Key>a</Key><Value>b</Value></Tag></TagSet></Tagging>"
	var ids, parts [writesOf]string
	named := func(name, method string, query func(n int64) string, text func(n int64) string, take func(n int64, answer string)) writeKind {
		return writeKind{name: name, do: func(ctx context.Context, c *client, n int64) error {
			answer, err := c.asks(ctx, method, "w/m"+strconv.FormatInt(n, 10)+query(n), text(n))
			take(n, answer)
			return err
		}}
	}
	none, ignore := func(int64) string { return "" }, func(int64, string) {}
	upload := func(n int64) string { return "?uploadId=" + ids[n] }
	between := func(text, before, after string) string {
		_, rest, _ := strings.Cut(text, before)
		found, _, _ := strings.Cut(rest, after)
		return found
	}
	begin := named("CreateMultipartUpload", http.MethodPost, func(int64) string { return "?uploads" }, none, func(n int64, answer string) {
		ids[n] = between(answer, "<UploadId>", "</UploadId>")
	})
	part := named("UploadPart", http.MethodPut, func(n int64) string { return upload(n) + "&partNumber=1" }, func(int64) string { return large }, ignore)
	list := named("", http.MethodGet, upload, none, func(n int64, answer string) { parts[n] = between(answer, "<ETag>", "</ETag>") })
	complete := named("CompleteMultipartUpload", http.MethodPost, upload, func(n int64) string {
		return "<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>" + parts[n] + "</ETag></Part></CompleteMultipartUpload>"
	}, ignore)
	abort := named("AbortMultipartUpload", http.MethodDelete, upload, none, ignore)
	kept := write("PUT, 4 KiB, versions are kept", http.MethodPut, "", small, "s")
	kept.keep = true
	again := begin
	again.name = "" // to abort them
	return []writeKind{
		write("PUT, 4 KiB, a new key", http.MethodPut, "", small, "s"),
		write("PUT, 4 KiB, over another", http.MethodPut, "", small, "s"),
		kept,
		write("PUT, 128 KiB, a new key", http.MethodPut, "", large, "l"),
		write("PUT, 128 KiB, over another", http.MethodPut, "", large, "l"),
		write("CopyObject, 4 KiB", http.MethodPut, "", "", "c", "X-Amz-Copy-Source", "/"+bucket+"/w/s1"),
		write("PUT, 4 KiB, staged", http.MethodPut, "", small, "g", "Fencing-Stage", "true"),
		write("PutObjectTagging", http.MethodPut, "?tagging", tags, "s"),
		write("DELETE", http.MethodDelete, "", "", "s"),
		begin, part, list, complete, again, abort,
	}
}

// writesPart prints a row of a table for each kind.
func (p plan) writesPart(ctx context.Context, w *world) ([]goal, error) {
	for _, one := range w.contenders {
		if one.name == "ours" {
			return nil, p.writesOf(ctx, w, one.client)
		}
	}
	return nil, nil
}

func (p plan) writesOf(ctx context.Context, w *world, c *client) error {
	for n := range int64(writesOf) { // warm-up: tables get pages, plans are made
		if err := c.put(ctx, "w/warm"+strconv.FormatInt(n, 10), 4<<10); err != nil {
			return err
		}
	}
	fmt.Println("| write | rows made | changed (in place) | deleted | WAL, bytes | records | page images | flushes | room, bytes |")
	fmt.Println("|---|---:|---:|---:|---:|---:|---:|---:|---:|")
	before, err := w.books(ctx)
	if err != nil {
		return err
	}
	for _, kind := range writeKinds() {
		keep := "0"
		if kind.keep {
			keep = "NULL"
		}
		if _, err := w.db.Pool.Exec(ctx, "SELECT objects.set_keep($1, "+keep+", NULL)", bucket); err != nil {
			return err
		}
		for n := range int64(writesOf) {
			if err := kind.do(ctx, c, n); err != nil {
				return fmt.Errorf("%s: %w", kind.name, err)
			}
		}
		after, err := w.books(ctx)
		if err != nil {
			return err
		}
		if kind.name != "" {
			fmt.Println(after.since(before).row(kind.name))
		}
		before = after
	}
	return nil
}

func (b books) since(o books) books {
	return books{
		b.inserted - o.inserted, b.updated - o.updated, b.hot - o.hot, b.deleted - o.deleted, b.records - o.records, b.images - o.images, b.syncs - o.syncs,
		b.wal - o.wal, b.room - o.room,
	}
}

func (b books) row(name string) string {
	each := func(n int64) string { return strconv.FormatFloat(float64(n)/writesOf, 'f', 1, 64) }
	return fmt.Sprintf("| %s | %s | %s (%s) | %s | %d | %s | %s | %s | %d |", name, each(b.inserted), each(b.updated), each(b.hot), each(b.deleted),
		b.wal/writesOf, each(b.records), each(b.images), each(b.syncs), b.room/writesOf)
}
