package s3

import (
	"bytes"
	"context"
	"encoding/xml"
	"errors"
	"net/http"
	"slices"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/versity/versitygw/s3err"
	"github.com/versity/versitygw/s3response"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/gateway/objects"
	"github.com/fencegate/fencegate/gateway/s3/s3error"
)

// DeleteObject implements versitygw's Backend. It checks the fence and removes the pointer in one transaction.
func (b *backend) DeleteObject(ctx context.Context, in *s3.DeleteObjectInput) (*s3.DeleteObjectOutput, error) {
	r := b.requestOf(ctx)
	err := r.expects(in)
	var gone objects.Removed
	if err == nil {
		gone, err = b.remove(b.base, r, in)
	}
	if err != nil {
		return nil, b.fail(r, *in.Bucket, "DeleteObject", err)
	}
	return &s3.DeleteObjectOutput{VersionId: gone.ID, DeleteMarker: &gone.Marker}, nil
}

// DeleteObjects implements versitygw's Backend, with one commit and one result per key.
func (b *backend) DeleteObjects(ctx context.Context, in *s3.DeleteObjectsInput) (s3response.DeleteResult, error) {
	r := b.requestOf(ctx)
	var result s3response.DeleteResult
	noKey := func(o types.ObjectIdentifier) bool { return o.Key == nil }
	if len(in.Delete.Objects) > maxList || slices.ContainsFunc(in.Delete.Objects, noKey) {
		return result, s3err.GetAPIError(s3err.ErrMalformedXML)
	}
	if _, err := b.catalog.Rule(b.base, *in.Bucket); err != nil {
		return result, b.fail(r, *in.Bucket, "DeleteObjects", err)
	}
	within, cancel := context.WithTimeout(b.base, deleteTime)
	defer cancel()
	var away error // set once PostgreSQL stops answering: the rest is not tried
	for _, o := range in.Delete.Objects {
		if away != nil {
			result.Error = append(result.Error, deleteError(o, r.unavailable(s3error.MessageNotTried)))
			continue
		}
		gone, err := b.remove(within, r, &s3.DeleteObjectInput{
			Bucket: in.Bucket, Key: o.Key, VersionId: o.VersionId, IfMatch: o.ETag,
			IfMatchLastModifiedTime: o.LastModifiedTime, IfMatchSize: o.Size,
		})
		if err == nil {
			result.Deleted = append(result.Deleted, deletedObject(gone, o))
			continue
		}
		if errors.Is(err, objects.ErrDatabaseAway) || errors.Is(err, fence.ErrUnknown) {
			away = err
		}
		result.Error = append(result.Error, deleteError(o, b.fail(r, *in.Bucket, "DeleteObjects", err)))
	}
	if r.http != nil && quiet(r.http.Request.Body()) {
		result.Deleted = nil
	}
	return result, nil
}

// quiet reports whether a multi-object deletion asks for errors only. versitygw does not pass that on.
func quiet(document []byte) bool {
	var list struct{ Quiet bool }
	return bytes.Contains(document, []byte("Quiet")) && xml.Unmarshal(document, &list) == nil && list.Quiet
}

// deleteTime bounds all deletions of one request together.
const deleteTime = time.Minute

// deleteError also names the version: versitygw drops an error that does not match the requested key and version.
func deleteError(o types.ObjectIdentifier, err error) types.Error {
	e := types.Error{Key: o.Key, VersionId: o.VersionId}
	if api, ok := errors.AsType[s3err.S3Error](err); ok {
		base := api.BaseError()
		e.Code, e.Message = &base.Code, &base.Description
	}
	return e
}

// datedList is a list of objects to delete, with dates in the form that SDKs write.
type datedList struct {
	Objects []struct {
		Key, VersionId, ETag, LastModifiedTime *string
		Size                                   *int64
	} `xml:"Object"`
}

// hasDates reports whether versitygw cannot parse a list of objects to delete: it accepts only RFC 3339 dates.
func hasDates(document []byte) bool {
	return bytes.Contains(document, []byte("LastModifiedTime")) && xml.Unmarshal(document, &s3response.DeleteObjects{}) != nil
}

// deleteDated is DeleteObjects for lists that versitygw cannot parse.
func (b *backend) deleteDated(a target) (any, int, error) {
	var list datedList
	if xml.Unmarshal(a.http.Request.Body(), &list) != nil {
		return nil, 0, s3err.GetAPIError(s3err.ErrMalformedXML)
	}
	in := s3.DeleteObjectsInput{Bucket: &a.bucket, Delete: &types.Delete{}}
	for _, o := range list.Objects {
		id := types.ObjectIdentifier{Key: o.Key, VersionId: o.VersionId, ETag: o.ETag, Size: o.Size}
		if o.LastModifiedTime != nil {
			at, err := dateOf(*o.LastModifiedTime)
			if err != nil {
				return nil, 0, s3err.GetAPIError(s3err.ErrMalformedXML)
			}
			id.LastModifiedTime = &at
		}
		in.Delete.Objects = append(in.Delete.Objects, id)
	}
	result, err := b.DeleteObjects(a.http, &in)
	return result, http.StatusOK, err
}

func deletedObject(g objects.Removed, o types.ObjectIdentifier) types.DeletedObject {
	d := types.DeletedObject{Key: o.Key, VersionId: o.VersionId}
	if g.Marker {
		d.DeleteMarker, d.DeleteMarkerVersionId = &g.Marker, g.ID
	}
	return d
}

func (b *backend) remove(ctx context.Context, r request, in *s3.DeleteObjectInput) (objects.Removed, error) {
	if err := objects.CheckKey(*in.Key); err != nil { // the gate checks no keys in a list
		return objects.Removed{}, err
	}
	if *in.Key == "" {
		return objects.Removed{}, s3error.Error{Code: "UserKeyMustBeSpecified", Status: http.StatusBadRequest, Message: "The object's key is empty. Nothing was deleted."}
	}
	var cond objects.Conditions
	if in.IfMatch != nil {
		cond.IfMatch = wantedETag(*in.IfMatch) // an empty one matches no object
	}
	err := objects.CheckVersionID(aws.ToString(in.VersionId))
	if err == nil {
		err = b.needGrant(&r, *in.Bucket, *in.Key)
	}
	if err != nil {
		return objects.Removed{}, err
	}
	expected := objects.Expected{Size: in.IfMatchSize, Modified: in.IfMatchLastModifiedTime}
	return b.catalog.Remove(ctx, r.change(*in.Bucket, *in.Key, cond), aws.ToString(in.VersionId), expected)
}
