package s3error_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/fencegate/fencegate/gateway/objects"
	"github.com/fencegate/fencegate/gateway/s3/s3error"
)

func TestErrorsOfTheCatalogueAreThoseOfS3(t *testing.T) {
	t.Parallel()
	lost := errors.New("connection reset")
	for _, c := range []struct {
		err    error
		status int
		code   string
	}{
		{objects.ErrNoBucket, 404, "NoSuchBucket"},
		{objects.ErrNoKey, 404, "NoSuchKey"},
		{objects.ErrNoVersion, 404, "NoSuchVersion"},
		{&objects.NoVersionError{Key: "k", ID: "v"}, 404, "NoSuchVersion"},
		{objects.ErrNoUpload, 404, "NoSuchUpload"},
		{&objects.NoUploadError{ID: "u"}, 404, "NoSuchUpload"},
		{objects.ErrVersionID, 400, "InvalidArgument"},
		{objects.ErrBucketNotEmpty, 409, "BucketNotEmpty"},
		{objects.ErrOtherRequest, 400, "InvalidRequest"},
		{objects.ErrGivenUp, 400, "RequestTimeout"},
		{objects.ErrIncomplete, 400, "IncompleteBody"},
		{&objects.PreconditionError{Condition: "If-Match"}, 412, "PreconditionFailed"},
		{&objects.MarkerError{}, 404, "NoSuchKey"},
		{&objects.MarkerError{Named: true}, 405, "MethodNotAllowed"},
		{&objects.TextError{What: "key"}, 400, "InvalidArgument"},
		{&objects.KeyTooLongError{Size: 2000}, 400, "KeyTooLongError"},
		{&objects.TooLargeError{Size: 1 << 50}, 400, "EntityTooLarge"},
		{&objects.BodyError{Cause: lost}, 400, "RequestTimeout"},
		// versitygw's error about the body takes precedence.
		{&objects.BodyError{Cause: s3error.NotImplemented}, 501, "NotImplemented"},
	} {
		for _, err := range []error{c.err, fmt.Errorf("put %q: %w", "k", c.err)} {
			e := s3error.Of(err, "orders")
			if e == nil || e.StatusCode() != c.status || e.BaseError().Code != c.code {
				t.Errorf("%v: got %v, want %d %s", err, e, c.status, c.code)
			}
		}
	}
	for _, err := range []error{objects.ErrDatabaseAway, objects.ErrStoreFailed, objects.ErrRuleInUse, lost, nil} {
		if e := s3error.Of(err, "orders"); e != nil {
			t.Errorf("%v: got %v, want no client's error", err, e)
		}
	}
}
