package s3

import (
	"context"
	"encoding/xml"
	"net/http"
	"strings"

	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/valyala/fasthttp"
	"github.com/versity/versitygw/s3err"

	"github.com/fencegate/fencegate/gateway/s3/edge"
	"github.com/fencegate/fencegate/gateway/s3/s3error"
)

// The only ACL gives root full control and grants nobody else anything. Reads of ACLs return it. Setting it changes
// nothing; setting any other is not implemented.

const namespaceXSI = "http://www.w3.org/2001/XMLSchema-instance"

// aclOwner and the types below form the XML document of an ACL.
type aclOwner struct {
	ID          string
	DisplayName string `xml:",omitempty"`
}

type accessControlPolicy struct {
	XMLName xml.Name `xml:"http://s3.amazonaws.com/doc/2006-03-01/ AccessControlPolicy"`
	Owner   aclOwner
	Grants  []accessGrant `xml:"AccessControlList>Grant"`
}

type accessGrant struct {
	Grantee    grantee
	Permission string
}

type grantee struct {
	XSI  string `xml:"xmlns:xsi,attr"`
	Type string `xml:"xsi:type,attr"`
	aclOwner
}

// rootACL is the only ACL, that of the access key of root.
type rootACL string

func (a rootACL) document() accessControlPolicy {
	root := aclOwner{ID: string(a), DisplayName: string(a)}
	return accessControlPolicy{Owner: root, Grants: []accessGrant{{Grantee: grantee{XSI: namespaceXSI, Type: "CanonicalUser", aclOwner: root}, Permission: fullControl}}}
}

const fullControl = "FULL_CONTROL"

// askedACL is an ACL in a request.
type askedACL struct {
	XMLName xml.Name `xml:"AccessControlPolicy"`
	Owner   *struct{ ID string }
	Grants  []struct {
		Grantee struct {
			Type string `xml:"http://www.w3.org/2001/XMLSchema-instance type,attr"`
			ID   string
			URI  string
		}
		Permission string
	} `xml:"AccessControlList>Grant"`
}

// isPrivate reports whether the ACL in the headers or the body of a request is the only one. An ACL that grants
// something to others, or not everything to root, is not.
func (a rootACL) isPrivate(req *fasthttp.Request, ofObject bool) (bool, error) {
	canned, body := string(req.Header.Peek(edge.HeaderACL)), req.Body()
	for name := range req.Header.All() {
		if strings.HasPrefix(string(name), edge.HeaderGrant) {
			return false, nil
		}
	}
	switch {
	case canned != "" && len(body) > 0:
		return false, s3err.GetAPIError(s3err.ErrUnexpectedContent)
	case canned == "" && len(body) == 0:
		return false, s3error.Error{Code: "MissingSecurityHeader", Status: http.StatusBadRequest, Message: "Your request says no ACL."}
	case canned == "":
		return a.isPrivateXML(body)
	case canned == "private", canned == "bucket-owner-full-control" && ofObject:
		return true, nil
	case canned == "public-read", canned == "public-read-write", canned == "authenticated-read",
		canned == "bucket-owner-read" && ofObject, canned == "aws-exec-read", canned == "log-delivery-write" && !ofObject:
		return false, nil
	}
	return false, s3err.GetInvalidArgumentErr(s3err.InvalidArgCannedAcl, strings.ToValidUTF8(canned, "?"))
}

func (a rootACL) isPrivateXML(body []byte) (bool, error) {
	var asked askedACL
	if xml.Unmarshal(body, &asked) != nil {
		return false, s3err.GetAPIError(s3err.ErrMalformedACL)
	}
	if asked.Owner != nil && asked.Owner.ID != string(a) || len(asked.Grants) == 0 {
		return false, nil
	}
	private := true
	for _, g := range asked.Grants {
		switch {
		case g.Grantee.Type == "AmazonCustomerByEmail":
			return false, s3error.Error{Code: "UnresolvableGrantByEmailAddress", Status: http.StatusBadRequest, Message: "The email address you provided does not match any account on record."}
		case g.Grantee.Type == "CanonicalUser" && g.Grantee.ID != string(a):
			return false, s3error.Error{Code: "InvalidArgument", Status: http.StatusBadRequest, Message: "Invalid id: there is no account but root's."}
		case g.Grantee.Type != "CanonicalUser", g.Grantee.URI != "", g.Permission != fullControl:
			private = false
		}
	}
	return private, nil
}

// GetBucketAcl implements versitygw's Backend: root owns everything. versitygw calls it for each request, so it answers
// from memory; the operation itself finds whether the bucket exists.
func (b *backend) GetBucketAcl(context.Context, *s3.GetBucketAclInput) ([]byte, error) {
	return b.acl, nil
}

func (b *backend) readACL(t target) (any, int, error) {
	return rootACL(b.root).document(), http.StatusOK, b.checkExists(t)
}

// writeACL accepts only the ACL that is in force anyway. It needs no grant, because it changes nothing.
func (b *backend) writeACL(t target) (any, int, error) {
	err := b.checkExists(t)
	private := true
	if err == nil {
		private, err = rootACL(b.root).isPrivate(&t.http.Request, t.key != "")
	}
	switch {
	case err == nil && !private:
		err = s3error.NotImplemented
	case err == nil && t.key == "" && !t.root:
		err = s3err.GetAPIError(s3err.ErrAccessDenied)
	}
	return nil, http.StatusOK, err
}
