package main

import (
	"context"
	"strings"
)

const xmlns = ` xmlns="http://s3.amazonaws.com/doc/2006-03-01/"`

// documents are the documents that a client puts, by sub-resource.
var documents = map[string]string{
	"accelerate": `<AccelerateConfiguration` + xmlns + `><Status>Enabled</Status></AccelerateConfiguration>`,
	"acl": `<AccessControlPolicy` + xmlns + `><Owner><ID>` + rootAccess + `</ID></Owner><AccessControlList><Grant><Grantee xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance"` +
		` xsi:type="CanonicalUser"><ID>` + rootAccess + `</ID></Grantee><Permission>FULL_CONTROL</Permission></Grant></AccessControlList></AccessControlPolicy>`,
	"cors":                `<CORSConfiguration` + xmlns + `><CORSRule><AllowedOrigin>*</AllowedOrigin><AllowedMethod>GET</AllowedMethod></CORSRule></CORSConfiguration>`,
	"encryption":          `<ServerSideEncryptionConfiguration` + xmlns + `><Rule><ApplyServerSideEncryptionByDefault><SSEAlgorithm>AES256</SSEAlgorithm></ApplyServerSideEncryptionByDefault></Rule></ServerSideEncryptionConfiguration>`,
	"legal-hold":          `<LegalHold` + xmlns + `><Status>ON</Status></LegalHold>`,
	"lifecycle":           `<LifecycleConfiguration` + xmlns + `><Rule><ID>a</ID><Prefix></Prefix><Status>Enabled</Status><Expiration><Days>1</Days></Expiration></Rule></LifecycleConfiguration>`,
	"logging":             `<BucketLoggingStatus` + xmlns + `></BucketLoggingStatus>`,
	"notification":        `<NotificationConfiguration` + xmlns + `></NotificationConfiguration>`,
	"object-lock":         `<ObjectLockConfiguration` + xmlns + `><ObjectLockEnabled>Enabled</ObjectLockEnabled></ObjectLockConfiguration>`,
	"ownershipControls":   `<OwnershipControls` + xmlns + `><Rule><ObjectOwnership>BucketOwnerEnforced</ObjectOwnership></Rule></OwnershipControls>`,
	"policy":              `{"Version":"2012-10-17","Statement":[{"Effect":"Allow","Principal":"*","Action":"s3:GetObject","Resource":"arn:aws:s3:::b/*"}]}`,
	"publicAccessBlock":   `<PublicAccessBlockConfiguration` + xmlns + `><BlockPublicAcls>true</BlockPublicAcls><IgnorePublicAcls>true</IgnorePublicAcls><BlockPublicPolicy>true</BlockPublicPolicy><RestrictPublicBuckets>true</RestrictPublicBuckets></PublicAccessBlockConfiguration>`,
	"replication":         `<ReplicationConfiguration` + xmlns + `><Role>r</Role><Rule><Status>Enabled</Status><Destination><Bucket>arn:aws:s3:::b</Bucket></Destination></Rule></ReplicationConfiguration>`,
	"requestPayment":      `<RequestPaymentConfiguration` + xmlns + `><Payer>Requester</Payer></RequestPaymentConfiguration>`,
	"restore":             `<RestoreRequest` + xmlns + `><Days>1</Days></RestoreRequest>`,
	"retention":           `<Retention` + xmlns + `><Mode>GOVERNANCE</Mode><RetainUntilDate>2036-01-01T00:00:00Z</RetainUntilDate></Retention>`,
	"tagging":             `<Tagging` + xmlns + `><TagSet><Tag><Key>a</Key><Value>1</Value></Tag></TagSet></Tagging>`,
	"versioning":          `<VersioningConfiguration` + xmlns + `><Status>Suspended</Status></VersioningConfiguration>`,
	"website":             `<WebsiteConfiguration` + xmlns + `><IndexDocument><Suffix>index.html</Suffix></IndexDocument></WebsiteConfiguration>`,
	"delete":              `<Delete><Object><Key>nothing</Key></Object></Delete>`,
	"analytics":           `<AnalyticsConfiguration` + xmlns + `><Id>1</Id></AnalyticsConfiguration>`,
	"inventory":           `<InventoryConfiguration` + xmlns + `><Id>1</Id></InventoryConfiguration>`,
	"metrics":             `<MetricsConfiguration` + xmlns + `><Id>1</Id></MetricsConfiguration>`,
	"intelligent-tiering": `<IntelligentTieringConfiguration` + xmlns + `><Id>1</Id></IntelligentTieringConfiguration>`,
	"select":              `<SelectObjectContentRequest` + xmlns + `><Expression>SELECT * FROM S3Object</Expression><ExpressionType>SQL</ExpressionType><InputSerialization><CSV/></InputSerialization><OutputSerialization><CSV/></OutputSerialization></SelectObjectContentRequest>`,
}

func documentOf(sub string) string { return documents[sub] }

// playDocuments puts, reads and removes the documents of a bucket.
func playDocuments(ctx context.Context, w *world, b *book) error {
	t := &talk{ctx: ctx, w: w, b: b}
	if err := w.bucket(ctx, "g-documents", "none", ""); err != nil {
		return err
	}
	lease := sessionOf("g-documents/1", 1, later())
	signed := func(text string) []option { return []option{body(text), header("Content-MD5", md5Of(text))} }
	for _, sub := range []string{
		"cors", "tagging", "ownershipControls", "publicAccessBlock", "policy", "encryption", "lifecycle", "replication", "object-lock", "acl", "versioning",
		"logging", "notification", "requestPayment", "accelerate", "website",
	} {
		b.part(sub)
		target := "/g-documents?" + sub
		t.do(root, "GET", target)
		t.do(anonymous, "GET", target)
		t.do(lease, "PUT", target, signed(documentOf(sub))...)
		t.do(anonymous, "PUT", target, signed(documentOf(sub))...)
		t.do(root, "PUT", target, signed(documentOf(sub))...)
		t.do(root, "PUT", target, signed("<nonsense")...)
		t.do(root, "PUT", target, body(documentOf(sub)), note("without a digest"))
		t.do(root, "GET", target)
		t.do(lease, "GET", target)
		if sub == "acl" || sub == "versioning" {
			continue
		}
		t.do(lease, "DELETE", target)
		t.do(root, "DELETE", target)
		t.do(root, "GET", target)
	}
	b.part("other documents")
	for _, d := range [][2]string{
		{"cors", `<CORSConfiguration></CORSConfiguration>`},
		{"cors", strings.ReplaceAll(documentOf("cors"), "GET", "nonsense")},
		{"tagging", strings.Replace(documentOf("tagging"), "<TagSet>", "<TagSet><Tag><Key>a</Key><Value>2</Value></Tag>", 1)},
		{"acl", strings.ReplaceAll(documentOf("acl"), rootAccess, "somebody")},
		{"acl", strings.ReplaceAll(documentOf("acl"), "FULL_CONTROL", "READ")},
		{"versioning", strings.ReplaceAll(documentOf("versioning"), "Suspended", "Enabled")},
	} {
		t.do(root, "PUT", "/g-documents?"+d[0], signed(d[1])...)
	}
	for _, acl := range []string{"private", "public-read", "nonsense"} {
		t.do(root, "PUT", "/g-documents?acl", header("X-Amz-Acl", acl))
	}
	t.do(root, "GET", "/g-documents?policyStatus")
	t.do(root, "GET", "/g-documents?location")
	return t.err
}
