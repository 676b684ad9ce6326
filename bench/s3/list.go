package main

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

const flatKeys = 100_000

// resetPeak resets the peak memory of a process.
func resetPeak(pid int) error {
	return os.WriteFile("/proc/"+strconv.Itoa(pid)+"/clear_refs", []byte("5"), 0o600)
}

// The folders of both lists, and of a thousand folders with one key each.
const (
	flat    = "flat/"
	many    = "many/"
	folders = "folders/"
)

// fill stores the keys of the lists directly in a contender's storage: rows for ours, empty files for versitygw. MinIO
// has no such access.
func (w *world) fill(ctx context.Context, one *contender, keys map[string]int) error {
	for prefix, n := range keys {
		if err := w.fillOne(ctx, one, prefix, n); err != nil {
			return err
		}
	}
	if one.name != "ours" {
		return nil
	}
	_, err := w.db.Pool.Exec(ctx, "VACUUM ANALYZE objects.pointers")
	return err
}

func (w *world) fillOne(ctx context.Context, one *contender, prefix string, n int) error {
	below := ""
	if prefix == folders {
		below = "/key"
	}
	if one.name == "ours" {
		_, err := w.db.Pool.Exec(ctx, `INSERT INTO objects.pointers (bucket, key, version, size, etag, modified_at)
			SELECT $1, $2 || lpad(n::text, 7, '0') || $3, gen_random_uuid(), 1, 'e', now() FROM generate_series(0, $4::integer - 1) n`, bucket, prefix, below, n)
		return err
	}
	for i := range n {
		path := filepath.Join(one.folder, bucket, prefix, fmt.Sprintf("%07d", i)) + below
		if i == 0 || below != "" {
			if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
				return err
			}
		}
		f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o600)
		if err == nil {
			err = f.Close()
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// listPart lists all of 100,000 keys, a page of a thousand from many under a delimiter, and a thousand folders.
func (p plan) listPart(ctx context.Context, w *world) (goals []goal, err error) {
	var contenders []*contender
	all := min(flatKeys, p.keys)
	for _, one := range w.contenders {
		if one.name == "minio" {
			continue
		}
		contenders = append(contenders, one)
		if err := w.fill(ctx, one, map[string]int{flat: all, many: p.keys, folders: page}); err != nil {
			return nil, fmt.Errorf("fill %s: %w", one.name, err)
		}
	}
	for _, list := range []struct {
		name, prefix, delimiter string
		want                    int
		goal                    float64
	}{
		{fmt.Sprintf("all of %d keys", all), flat, "", all, 0},
		{fmt.Sprintf("1000 of %d keys", p.keys), many, "/", page, 10},
		{"1000 folders", folders, "/", page, 0},
	} {
		rates, err := p.measure(ctx, w, "list "+list.name, 1, contenders, func(ctx context.Context, one *contender, _ int64) error {
			n, err := one.list(ctx, list.prefix, list.delimiter, list.want)
			if err == nil && n != list.want {
				err = fmt.Errorf("list of %s has %d entries, wanted %d", list.prefix, n, list.want)
			}
			return err
		})
		if err != nil {
			return nil, err
		}
		if list.goal > 0 {
			goals = append(goals, compare("list."+strings.ReplaceAll(list.name, " ", "-"), rates, "versitygw", list.goal)...)
		}
	}
	return goals, nil
}

const page = 1000

// list counts the entries below a prefix, page by page, until it has enough.
func (c *client) list(ctx context.Context, prefix, delimiter string, enough int) (n int, err error) {
	for token := ""; ; {
		query := url.Values{"list-type": {"2"}, "prefix": {prefix}}
		if delimiter != "" {
			query.Set("delimiter", delimiter)
		}
		if token != "" {
			query.Set("continuation-token", token)
		}
		text, err := c.want(ctx, http.MethodGet, "/"+bucket+"?"+strings.ReplaceAll(query.Encode(), "+", "%20"), nil, 0)
		if err != nil {
			return n, err
		}
		n += strings.Count(text, "<Key>") + strings.Count(text, "<CommonPrefixes>")
		_, rest, more := strings.Cut(text, "<NextContinuationToken>")
		if !more || n >= enough {
			return n, nil
		}
		token, _, _ = strings.Cut(rest, "</NextContinuationToken>")
	}
}
