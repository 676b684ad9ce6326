package objects

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/fencegate/fencegate/gateway/blob"
)

const sqlStages = `SELECT s.id, s.bucket, s.key, (SELECT sum(n)::bigint FROM unnest(s.blob_sizes) n), s.etag, s.resource, s.token, s.created_at
	FROM objects.stages s WHERE s.bucket = $1 AND starts_with(s.key, $2) AND s.id > $3
	AND NOT EXISTS (SELECT FROM objects.blobs b WHERE b.id = ANY (s.blobs) AND b.state <> 'pending') ORDER BY s.id LIMIT $4`

// Staged is an upload that waits for its publication.
type Staged struct {
	Version // what it will become; Modified is when it was staged

	Bucket string
}

// Staged lists at most limit staged uploads of a bucket whose keys begin with the prefix, ordered by their staging,
// after the given id.
func (c *Catalog) Staged(ctx context.Context, bucket, prefix, after string, limit int) ([]Staged, error) {
	var above blob.ID
	if after != "" {
		var err error
		if above, err = blob.ParseID(after); err != nil {
			return nil, fmt.Errorf("list staged uploads after %q: %w", after, err)
		}
	}
	_, err := c.Rule(ctx, bucket)
	var all []Staged
	if err == nil {
		err = c.db.Once(ctx, func(ctx context.Context, q Querier) error {
			all = nil
			rows, err := q.Query(ctx, sqlStages, bucket, prefix, UUID(above), limit)
			if err != nil {
				return err
			}
			var s Staged
			var id [16]byte
			_, err = pgx.ForEachRow(rows, []any{&id, &s.Bucket, &s.Key, &s.Size, &s.ETag, &s.Resource, &s.Token, &s.Modified}, func() error {
				s.ID = blob.ID(id).String()
				all = append(all, s)
				return nil
			})
			return err
		})
	}
	if err != nil {
		return nil, fmt.Errorf("list staged uploads of bucket %q: %w", bucket, err)
	}
	return all, nil
}
