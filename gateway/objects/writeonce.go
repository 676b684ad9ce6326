package objects

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/fencegate/fencegate/fence"
)

// ParseRetention parses how long the objects of a bucket are write-once: a duration such as "720h" or "30d", or "none",
// which is 0. The error is a [*fence.InvalidError].
func ParseRetention(s string) (time.Duration, error) {
	if s == "none" {
		return 0, nil
	}
	if d, ok := parseAge(s); ok {
		return d, nil
	}
	return 0, &fence.InvalidError{Field: "write_once", Reason: fmt.Sprintf(
		"is %q; it must be none, or a duration from 1s to %dd, such as 720h or 30d", s, maxKeepDays)}
}

// ShowRetention returns the form that [ParseRetention] parses.
func ShowRetention(d time.Duration) string {
	if d <= 0 {
		return "none"
	}
	return d.String()
}

// SetRetention sets how long the objects of a bucket can be neither overwritten nor deleted after they are written; 0:
// not at all. The error is [ErrRetained] if that is shorter than before and the bucket holds objects, [ErrNoBucket], or
// a [*fence.InvalidError].
func (c *Catalog) SetRetention(ctx context.Context, bucket string, d time.Duration) error {
	if err := checkRetention(d); err != nil {
		return err
	}
	if _, err := c.setBucket(ctx, bucket, BucketSettings{Retained: &d}); err != nil {
		return fmt.Errorf("set the write-once retention of bucket %q to %s: %w", bucket, ShowRetention(d), err)
	}
	return nil
}

func checkRetention(d time.Duration) error {
	if read, err := ParseRetention(ShowRetention(d)); err != nil || read != d {
		return &fence.InvalidError{Field: "write_once", Reason: "is out of range"}
	}
	return nil
}

func retentionOf(age pgtype.Interval) time.Duration {
	return time.Duration(age.Microseconds) * time.Microsecond
}

// RetainedError reports that the object is write-once and its retention has not ended. Nothing was changed.
type RetainedError struct{ Until string } // RFC 3339, UTC

func (e *RetainedError) Error() string {
	return "the object is written once: it can't change before " + e.Until
}
