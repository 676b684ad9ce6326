package s3

import (
	"net/http"

	"github.com/gofiber/fiber/v3"
	"github.com/versity/versitygw/metrics"
	"github.com/versity/versitygw/s3api/controllers"
	"github.com/versity/versitygw/s3err"
)

// routeTable has all operations that the S3 port serves, or refuses in its own words. A sub-resource that is missing
// here answers NotImplemented: versitygw's own router would ignore it, and DELETE /bucket?policy would delete the
// bucket.
var routeTable = []place{
	{method: http.MethodGet, level: ofService, routes: []route{
		noCopySource,
		{action: metrics.ActionListAllMyBuckets, do: versity(ctl.ListBuckets), steps: anyRegion | unnamed | noCORS | noACL},
	}},
	{method: http.MethodOptions, level: ofService, routes: []route{{do: emptyAnswer, steps: open}}},

	{method: http.MethodHead, level: ofBucket, routes: []route{
		noCopySource,
		{action: metrics.ActionHeadBucket, do: versity(ctl.HeadBucket), steps: sumOptional},
	}},
	{method: http.MethodGet, level: ofBucket, with: "id", routes: []route{
		noCopySource,
		{sub: "location", action: metrics.ActionGetBucketLocation, do: versity(ctl.GetBucketLocation)},
		{sub: "tagging", action: metrics.ActionGetBucketTagging, do: versity(ctl.GetBucketTagging)},
		{sub: "ownershipControls", action: metrics.ActionGetBucketOwnershipControls, own: noOwnership, steps: checked},
		{sub: "versioning", action: metrics.ActionGetBucketVersioning, do: versity(ctl.GetBucketVersioning)},
		{sub: "policy", action: metrics.ActionGetBucketPolicy, do: versity(ctl.GetBucketPolicy)},
		{sub: "cors", action: metrics.ActionGetBucketCors, do: versity(ctl.GetBucketCors)},
		{sub: "object-lock", action: metrics.ActionGetObjectLockConfiguration, do: versity(ctl.GetObjectLockConfiguration)},
		{sub: "acl", action: metrics.ActionGetBucketAcl, own: (*backend).readACL, steps: checked | sumOptional},
		{sub: "uploads", action: metrics.ActionListMultipartUploads, do: versity(ctl.ListMultipartUploads)},
		{sub: "versions", action: metrics.ActionListObjectVersions, do: versity(ctl.ListObjectVersions)},
		{sub: "policyStatus", action: metrics.ActionGetBucketPolicyStatus, own: (*backend).readPolicyStatus, steps: checked},
		unserved("analytics", "id", metrics.ActionGetBucketAnalyticsConfiguration),
		unserved("analytics", "", metrics.ActionListBucketAnalyticsConfigurations),
		{sub: "encryption", action: metrics.ActionGetBucketEncryption, own: noEncryption, steps: checked | noCORS},
		unserved("intelligent-tiering", "id", metrics.ActionGetBucketIntelligentTieringConfiguration),
		unserved("intelligent-tiering", "", metrics.ActionListBucketIntelligentTieringConfigurations),
		unserved("inventory", "id", metrics.ActionGetBucketInventoryConfiguration),
		unserved("inventory", "", metrics.ActionListBucketInventoryConfigurations),
		{sub: "lifecycle", action: metrics.ActionGetBucketLifecycleConfiguration, own: noLifecycle, steps: checked | noCORS},
		unserved("logging", "", metrics.ActionGetBucketLogging),
		unserved("requestPayment", "", metrics.ActionGetBucketRequestPayment),
		unserved("metrics", "id", metrics.ActionGetBucketMetricsConfiguration),
		unserved("metrics", "", metrics.ActionListBucketMetricsConfigurations),
		{sub: "replication", action: metrics.ActionGetBucketReplication, own: noReplication, steps: checked | noCORS},
		{sub: "publicAccessBlock", action: metrics.ActionGetPublicAccessBlock, own: noPublicAccess, steps: checked | noCORS},
		unserved("notification", "", metrics.ActionGetBucketNotificationConfiguration),
		unserved("accelerate", "", metrics.ActionGetBucketAccelerateConfiguration),
		{sub: "website", action: metrics.ActionGetBucketWebsite, do: versity(ctl.GetBucketWebsite)},
		{and: "list-type=2", action: metrics.ActionListObjectsV2, do: versity(ctl.ListObjectsV2)},
		{action: metrics.ActionListObjects, do: versity(ctl.ListObjects)},
	}},
	{method: http.MethodPut, level: ofBucket, with: "id", routes: []route{
		{sub: "tagging", action: metrics.ActionPutBucketTagging, do: versity(ctl.PutBucketTagging), steps: corsFirst | needsBody | needsSum},
		unserved("ownershipControls", "", metrics.ActionPutBucketOwnershipControls),
		{sub: "versioning", action: metrics.ActionPutBucketVersioning, do: versity(ctl.PutBucketVersioning), steps: needsBody},
		{sub: "object-lock", action: metrics.ActionPutObjectLockConfiguration, do: versity(ctl.PutObjectLockConfiguration), steps: needsBody | needsSum},
		{sub: "cors", action: metrics.ActionPutBucketCors, do: versity(ctl.PutBucketCors), steps: needsBody | needsSum},
		{sub: "policy", action: metrics.ActionPutBucketPolicy, do: versity(ctl.PutBucketPolicy), steps: checked},
		{sub: "acl", action: metrics.ActionPutBucketAcl, own: (*backend).writeACL, steps: checked},
		unserved("analytics", "", metrics.ActionPutBucketAnalyticsConfiguration),
		unserved("encryption", "", metrics.ActionPutBucketEncryption),
		unserved("intelligent-tiering", "", metrics.ActionPutBucketIntelligentTieringConfiguration),
		unserved("inventory", "", metrics.ActionPutBucketInventoryConfiguration),
		unserved("lifecycle", "", metrics.ActionPutBucketLifecycleConfiguration),
		unserved("logging", "", metrics.ActionPutBucketLogging),
		unserved("requestPayment", "", metrics.ActionPutBucketRequestPayment),
		unserved("metrics", "", metrics.ActionPutBucketMetricsConfiguration),
		unserved("replication", "", metrics.ActionPutBucketReplication),
		unserved("publicAccessBlock", "", metrics.ActionPutPublicAccessBlock),
		unserved("notification", "", metrics.ActionPutBucketNotificationConfiguration),
		unserved("accelerate", "", metrics.ActionPutBucketAccelerateConfiguration),
		{sub: "website", action: metrics.ActionPutBucketWebsite, do: versity(ctl.PutBucketWebsite), steps: needsBody},
		{action: metrics.ActionCreateBucket, do: versity(ctl.CreateBucket), steps: checked | noACL},
	}},
	{method: http.MethodDelete, level: ofBucket, with: "id", routes: []route{
		noCopySource,
		{sub: "tagging", action: metrics.ActionDeleteBucketTagging, do: versity(ctl.DeleteBucketTagging)},
		{sub: "ownershipControls", action: metrics.ActionDeleteBucketOwnershipControls, own: deleteUnconfigured, steps: checked},
		{sub: "policy", action: metrics.ActionDeleteBucketPolicy, do: versity(ctl.DeleteBucketPolicy)},
		{sub: "cors", action: metrics.ActionDeleteBucketCors, do: versity(ctl.DeleteBucketCors)},
		unserved("analytics", "", metrics.ActionDeleteBucketAnalyticsConfiguration),
		{sub: "encryption", action: metrics.ActionDeleteBucketEncryption, own: deleteUnconfigured, steps: checked | noCORS},
		unserved("intelligent-tiering", "", metrics.ActionDeleteBucketIntelligentTieringConfiguration),
		unserved("inventory", "", metrics.ActionDeleteBucketInventoryConfiguration),
		unserved("lifecycle", "", metrics.ActionDeleteBucketLifecycle),
		unserved("metrics", "", metrics.ActionDeleteBucketMetricsConfiguration),
		unserved("replication", "", metrics.ActionDeleteBucketReplication),
		{sub: "publicAccessBlock", action: metrics.ActionDeletePublicAccessBlock, own: deleteUnconfigured, steps: checked | noCORS},
		{sub: "website", action: metrics.ActionDeleteBucketWebsite, do: versity(ctl.DeleteBucketWebsite)},
		{action: metrics.ActionDeleteBucket, do: versity(ctl.DeleteBucket)},
	}},
	{method: http.MethodPost, level: ofBucket, routes: []route{
		{sub: "delete", action: metrics.ActionDeleteObjects, do: deleteObjects, steps: needsBody | needsSum},
	}},
	{method: http.MethodOptions, level: ofBucket, routes: []route{{action: metrics.ActionOptions, do: versity(ctl.CORSOptions), steps: anonymous}}},

	{method: http.MethodHead, level: ofObject, routes: []route{
		noCopySource,
		{action: metrics.ActionHeadObject, do: versity(ctl.HeadObject), steps: sumOptional},
	}},
	{method: http.MethodGet, level: ofObject, routes: []route{
		{sub: "uploads", action: metrics.ActionUndetected, do: failing(s3err.GetAPIError(s3err.ErrGetUploadsWithKey)), steps: open},
		{sub: "versions", action: metrics.ActionUndetected, do: failing(s3err.GetAPIError(s3err.ErrVersionsWithKey)), steps: open},
		noCopySource,
		{sub: "tagging", action: metrics.ActionGetObjectTagging, do: versity(ctl.GetObjectTagging)},
		{sub: "retention", action: metrics.ActionGetObjectRetention, do: versity(ctl.GetObjectRetention)},
		{sub: "legal-hold", action: metrics.ActionGetObjectLegalHold, do: versity(ctl.GetObjectLegalHold)},
		{sub: "acl", action: metrics.ActionGetObjectAcl, own: (*backend).readACL, steps: checked},
		{sub: "attributes", action: metrics.ActionGetObjectAttributes, do: versity(ctl.GetObjectAttributes)},
		{sub: "uploadId", action: metrics.ActionListParts, do: versity(ctl.ListParts)},
		{action: metrics.ActionGetObject, do: versity(ctl.GetObject)},
	}},
	{method: http.MethodPut, level: ofObject, with: "versionId", routes: []route{
		{sub: "tagging", action: metrics.ActionPutObjectTagging, do: versity(ctl.PutObjectTagging), steps: corsFirst | needsBody},
		{sub: "retention", action: metrics.ActionPutObjectRetention, do: versity(ctl.PutObjectRetention), steps: checked | needsSum},
		{sub: "legal-hold", action: metrics.ActionPutObjectLegalHold, do: versity(ctl.PutObjectLegalHold), steps: checked | needsSum},
		{sub: "acl", action: metrics.ActionPutObjectAcl, own: (*backend).writeACL, steps: checked},
		{sub: "uploadId", and: "partNumber", header: headerCopySource, action: metrics.ActionUploadPartCopy, do: versity(ctl.UploadPartCopy)},
		{sub: "uploadId", and: "partNumber", action: metrics.ActionUploadPart, do: versity(ctl.UploadPart), steps: streamed},
		{and: "partNumber", action: metrics.ActionUndetected, do: failing(errUploadID), steps: open},
		{sub: "uploadId", action: metrics.ActionUndetected, do: failing(errPartNumber), steps: open},
		{header: headerCopySource, action: metrics.ActionCopyObject, do: versity(ctl.CopyObject), steps: corsFirst},
		{action: metrics.ActionPutObject, do: versity(ctl.PutObject), steps: streamed | corsFirst},
	}},
	{method: http.MethodDelete, level: ofObject, with: "versionId", routes: []route{
		noCopySource,
		{sub: "tagging", action: metrics.ActionDeleteObjectTagging, do: versity(ctl.DeleteObjectTagging)},
		{sub: "uploadId", action: metrics.ActionAbortMultipartUpload, do: versity(ctl.AbortMultipartUpload)},
		{action: metrics.ActionDeleteObject, do: versity(ctl.DeleteObject)},
	}},
	{method: http.MethodPost, level: ofObject, with: "versionId", routes: []route{
		{sub: "uploadId", header: headerCopySource, action: metrics.ActionUndetected, do: refuseCopySource, steps: open},
		{sub: "restore", action: metrics.ActionRestoreObject, do: versity(ctl.RestoreObject), steps: checked},
		{sub: "uploadId", action: metrics.ActionCompleteMultipartUpload, do: versity(ctl.CompleteMultipartUpload)},
		{sub: "uploads", action: metrics.ActionCreateMultipartUpload, do: versity(ctl.CreateMultipartUpload)},
	}},
	{method: http.MethodOptions, level: ofObject, routes: []route{{action: metrics.ActionOptions, do: versity(ctl.CORSOptions), steps: anonymous}}},
}

// otherSubresources are sub-resources of S3 that no read has; without this list they would be ignored.
const otherSubresources = "torrent session metadataTable metadataConfiguration metadataInventoryTable metadataJournalTable abac " +
	"renameObject select restore"

// noCopySource refuses a header that only writes may have, before authentication.
var noCopySource = route{header: headerCopySource, action: metrics.ActionUndetected, do: refuseCopySource, steps: open}

// unserved is an operation that versitygw knows and this port does not serve. It still authenticates the request.
func unserved(sub, and, action string) route {
	return route{sub: sub, and: and, action: action, steps: noCORS}
}

// versity wraps an operation of versitygw.
func versity(do func(ctl, fiber.Ctx) (*controllers.Response, error)) serveFunc {
	return func(p *port, c fiber.Ctx) (*controllers.Response, error) { return do(p.ctl, c) }
}

func refuseCopySource(_ *port, c fiber.Ctx) (*controllers.Response, error) {
	return &controllers.Response{}, s3err.GetInvalidArgumentErr(s3err.InvalidArgCopySource, c.Get(headerCopySource))
}

// emptyAnswer answers 200 and has no effect.
func emptyAnswer(*port, fiber.Ctx) (*controllers.Response, error) {
	return &controllers.Response{}, nil
}

// deleteObjects calls versitygw, except for lists that it cannot parse.
func deleteObjects(p *port, c fiber.Ctx) (*controllers.Response, error) {
	if hasDates(c.BodyRaw()) {
		return deleteDatedObjects(p, c)
	}
	return p.ctl.DeleteObjects(c)
}

var deleteDatedObjects = ownOperation(metrics.ActionDeleteObjects, (*backend).deleteDated)

var (
	errPartNumber = s3err.GetMethodNotAllowedErr(http.MethodPut, s3err.ResourceTypeUpload,
		[]string{http.MethodDelete, http.MethodPost, http.MethodGet})
	errUploadID = s3err.GetInvalidArgumentErr(s3err.InvalidArgMissingUploadId, "partNumber")
)
