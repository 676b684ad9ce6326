package objects

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/fencegate/fencegate/fence"
)

// Keep says which versions a bucket keeps when they are no longer current. The zero Keep keeps none: the sweep deletes
// their bytes after a grace period.
type Keep struct {
	Versions int           // the newest n of each key
	For      time.Duration // or all, for this long
	All      bool          // or all, forever
}

// ParseKeep parses "none", "all", a number of versions, or a duration such as "720h" or "30d". The error is a
// [*fence.InvalidError].
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
	if d, ok := parseAge(s); ok {
		return Keep{For: d}, nil
	}
	return Keep{}, &fence.InvalidError{Field: "keep", Reason: fmt.Sprintf(
		"is %q; it must be none, all, a number of versions (1 to %d), or a duration from 1s to %dd, such as 720h or 30d", s, maxKeep, maxKeepDays)}
}

// parseAge parses a duration such as "720h" or "30d".
func parseAge(s string) (d time.Duration, ok bool) {
	if days, isDays := strings.CutSuffix(s, "d"); isDays {
		n, err := strconv.Atoi(days)
		return time.Duration(n) * 24 * time.Hour, err == nil && n > 0 && n <= maxKeepDays
	}
	d, err := time.ParseDuration(s)
	return d, err == nil && d >= time.Second && d <= maxKeepDays*24*time.Hour
}

const (
	maxKeep     = 1_000_000
	maxKeepDays = 36_500
)

// String returns the form that [ParseKeep] parses.
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

func keepOf(count pgtype.Int4, age pgtype.Interval) Keep {
	switch {
	case count.Valid:
		return Keep{Versions: int(count.Int32)}
	case age.Valid:
		return Keep{For: time.Duration(age.Microseconds) * time.Microsecond}
	}
	return Keep{All: true}
}

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

func checkRetention(d time.Duration) error {
	if read, err := ParseRetention(ShowRetention(d)); err != nil || read != d {
		return &fence.InvalidError{Field: "write_once", Reason: "is out of range"}
	}
	return nil
}

func retentionOf(age pgtype.Interval) time.Duration {
	return time.Duration(age.Microseconds) * time.Microsecond
}
