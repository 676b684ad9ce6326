package objects

import (
	"context"

	"github.com/jackc/pgx/v5/pgtype"
)

// DocumentKind names one of a bucket's documents. A bucket has at most one of each kind.
type DocumentKind string

// Kinds of documents.
const (
	DocumentCORS DocumentKind = "cors"
	DocumentTags DocumentKind = "tagging"
)

const (
	sqlSetDocument = "SELECT objects.set_bucket_document($1, $2, $3)"
	sqlDocument    = "SELECT d.document FROM objects.buckets b LEFT JOIN objects.bucket_documents d ON d.bucket = b.name AND d.kind = $2 WHERE b.name = $1"
)

// Document returns a document; "" if there is none. The error is [ErrNoBucket] if the bucket does not exist.
func (c *Catalog) Document(ctx context.Context, bucket string, kind DocumentKind) (string, error) {
	var text pgtype.Text
	err := c.db.Once(ctx, func(ctx context.Context, q Querier) error {
		return q.QueryRow(ctx, sqlDocument, bucket, string(kind)).Scan(&text)
	})
	return text.String, noRows(err, ErrNoBucket)
}

// SetDocument stores a document; "" removes it.
func (c *Catalog) SetDocument(ctx context.Context, bucket string, kind DocumentKind, text string) error {
	return c.db.Settle(ctx, Exec(sqlSetDocument, bucket, string(kind), pgtype.Text{String: text, Valid: text != ""}))
}
