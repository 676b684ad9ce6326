package s3

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/versity/versitygw/s3err"
	"github.com/versity/versitygw/s3response"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/gateway/s3/s3error"
)

const (
	sqlSetKeep = "SELECT objects.set_keep($1, $2, $3)"
	sqlKeep    = "SELECT keep_count, keep_age FROM objects.buckets WHERE name = $1"
)

// Keep says what becomes of a version that is no longer current. The zero Keep
// keeps none: the sweep takes its bytes after a grace.
type Keep struct {
	Versions int           // so many of each key, the newest
	For      time.Duration // or all, for so long
	All      bool          // or all, for ever
}

// ParseKeep reads "none", "all", a number of versions, or a duration such as
// "720h" or "30d". The error is a [*fence.InvalidError].
func ParseKeep(s string) (Keep, error) {
	switch s {
	case "none":
		return Keep{}, nil
	case "all":
		return Keep{All: true}, nil
	}
	if n, err := strconv.Atoi(s); err == nil && n > 0 && n <= maxKeep && s == strconv.Itoa(n) {
		return Keep{Versions: n}, nil
	}
	if days, isDays := strings.CutSuffix(s, "d"); isDays {
		if n, err := strconv.Atoi(days); err == nil && n > 0 && n <= maxKeepDays {
			return Keep{For: time.Duration(n) * 24 * time.Hour}, nil
		}
	}
	if d, err := time.ParseDuration(s); err == nil && d >= time.Second && d <= maxKeepDays*24*time.Hour {
		return Keep{For: d}, nil
	}
	return Keep{}, &fence.InvalidError{Field: "keep", Reason: fmt.Sprintf(
		"is %q; it must be none, all, a number of versions (1 to %d), or a duration from 1s to %dd, such as 720h or 30d", s, maxKeep, maxKeepDays)}
}

const (
	maxKeep     = 1_000_000
	maxKeepDays = 36_500
)

// String is the form that [ParseKeep] reads.
func (k Keep) String() string {
	switch {
	case k.All:
		return "all"
	case k.For > 0:
		return k.For.String()
	case k.Versions > 0:
		return strconv.Itoa(k.Versions)
	}
	return "none"
}

func (k Keep) validate() error {
	read, err := ParseKeep(k.String())
	if err == nil && read != k {
		err = &fence.InvalidError{Field: "keep", Reason: "says more than one thing, or less than nothing"}
	}
	return err
}

// setKeep changes what a bucket keeps.
func (d database) setKeep(ctx context.Context, bucket string, k Keep) error {
	count, age := pgtype.Int4{Int32: int32(k.Versions), Valid: !k.All && k.For == 0}, pgtype.Interval{}
	if k.For > 0 {
		age = interval(k.For)
	}
	return d.settle(ctx, exec(sqlSetKeep, bucket, count, age))
}

// keep is what a bucket keeps, or errNoBucket.
func (d database) keep(ctx context.Context, bucket string) (Keep, error) {
	var count pgtype.Int4
	var age pgtype.Interval
	err := d.once(ctx, func(ctx context.Context, q querier) error { return q.QueryRow(ctx, sqlKeep, bucket).Scan(&count, &age) })
	if err = noRows(err, errNoBucket); err != nil {
		return Keep{}, err
	}
	return keepOf(count, age), nil
}

func keepOf(count pgtype.Int4, age pgtype.Interval) Keep {
	switch {
	case count.Valid:
		return Keep{Versions: int(count.Int32)}
	case age.Valid:
		return Keep{For: time.Duration(age.Microseconds) * time.Microsecond}
	}
	return Keep{All: true}
}

// GetBucketVersioning implements the front's Backend: enabled where anything is kept.
func (b *backend) GetBucketVersioning(ctx context.Context, bucket string) (s3response.GetBucketVersioningOutput, error) {
	var out s3response.GetBucketVersioningOutput
	k, err := b.db.keep(b.base, bucket)
	if err != nil {
		return out, b.fail(b.requestOf(ctx), bucket, "GetBucketVersioning", err)
	}
	if k != (Keep{}) {
		enabled := types.BucketVersioningStatusEnabled
		out.Status = &enabled
	}
	return out, nil
}

// PutBucketVersioning implements the front's Backend: enabling it keeps all,
// unless the bucket keeps some already. Suspending it is not there.
func (b *backend) PutBucketVersioning(ctx context.Context, bucket string, status types.BucketVersioningStatus) error {
	r := b.requestOf(ctx)
	switch {
	case !r.root:
		return s3err.GetAPIError(s3err.ErrAccessDenied)
	case status != types.BucketVersioningStatusEnabled:
		return s3error.NotThere
	}
	k, err := b.db.keep(b.base, bucket)
	if err == nil && k == (Keep{}) {
		err = b.db.setKeep(b.base, bucket, Keep{All: true})
	}
	if err != nil {
		return b.fail(r, bucket, "PutBucketVersioning", err)
	}
	return nil
}
