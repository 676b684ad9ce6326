package s3error

import (
	"errors"
	"net/http"

	"github.com/versity/versitygw/s3err"

	"github.com/fencegate/fencegate/gateway/blob"
	"github.com/fencegate/fencegate/gateway/objects"
)

// Of returns the S3 error for an error of package objects, or the one that it wraps already; nil if it is not a
// client's error. bucket is the requested one.
func Of(err error, bucket string) s3err.S3Error {
	if errors.Is(err, objects.ErrNoBucket) {
		return s3err.GetBucketErr(s3err.ErrNoSuchBucket, bucket)
	}
	if e, ok := errors.AsType[s3err.S3Error](err); ok {
		return e
	}
	if e := ofFacts(err); e != nil {
		return e
	}
	for _, known := range plain {
		if errors.Is(err, known.is) {
			return known.as
		}
	}
	return nil
}

// plain maps the errors without facts.
var plain = []struct {
	is error
	as s3err.S3Error
}{
	{objects.ErrNoKey, s3err.GetAPIError(s3err.ErrNoSuchKey)},
	{objects.ErrNoVersion, s3err.GetAPIError(s3err.ErrNoSuchVersion)},
	{objects.ErrNoUpload, s3err.GetAPIError(s3err.ErrNoSuchUpload)},
	{objects.ErrVersionID, Error{Code: "InvalidArgument", Status: http.StatusBadRequest, Message: "Invalid version id specified"}},
	{objects.ErrBucketNotEmpty, s3err.GetAPIError(s3err.ErrBucketNotEmpty)},
	{objects.ErrIncomplete, s3err.GetAPIError(s3err.ErrIncompleteBody)},
	{objects.ErrOtherRequest, Error{
		Code: "InvalidRequest", Status: http.StatusBadRequest,
		Message: "This amz-sdk-invocation-id was used for another request on the same key. Nothing was changed.",
	}},
	{objects.ErrGivenUp, Error{
		Code: "RequestTimeout", Status: http.StatusBadRequest,
		Message: "The upload took so long that it was given up. Nothing was stored. Upload again.",
	}},
}

// ofFacts maps the errors with facts; nil for any other.
func ofFacts(err error) s3err.S3Error {
	if e, ok := errors.AsType[*objects.PreconditionError](err); ok {
		return s3err.GetPreconditionFailedErr(s3err.Condition(e.Condition))
	}
	if e, ok := errors.AsType[*objects.MarkerError](err); ok {
		if e.Named {
			return s3err.GetAPIError(s3err.ErrMethodNotAllowed)
		}
		return s3err.GetAPIError(s3err.ErrNoSuchKey)
	}
	if e, ok := errors.AsType[*objects.NoVersionError](err); ok {
		return s3err.GetNoSuchVersionErr(e.Key, e.ID)
	}
	if e, ok := errors.AsType[*objects.NoUploadError](err); ok {
		return s3err.GetNoSuchUploadErr(e.ID)
	}
	if e, ok := errors.AsType[*objects.RetainedError](err); ok { // S3's answer for a locked object
		return Error{
			Code: "AccessDenied", Status: http.StatusForbidden,
			Message: "This bucket's objects are written once: this one can be neither overwritten nor deleted, nor its tags changed, before " + e.Until + ". Nothing was changed.",
		}
	}
	if e, ok := errors.AsType[*objects.TextError](err); ok {
		return InvalidText(e.What)
	}
	if e, ok := errors.AsType[*objects.KeyTooLongError](err); ok {
		return s3err.GetKeyTooLongErr(int64(e.Size), objects.MaxKey)
	}
	if e, ok := errors.AsType[*objects.TooLargeError](err); ok {
		return s3err.GetEntityTooLargeErr(e.Size, blob.MaxS3Blob)
	}
	if _, ok := errors.AsType[*objects.BodyError](err); ok { // and not an error of versitygw, such as a wrong digest or a malformed chunk
		return Error{
			Code: "RequestTimeout", Status: http.StatusBadRequest,
			Message: "The connection was lost or stalled before the whole body was read. Nothing was stored.",
		}
	}
	return nil
}
