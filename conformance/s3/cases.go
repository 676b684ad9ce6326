package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/fencegate/fencegate/gateway/s3/credentials"
)

const (
	seeded     = "seed/one.txt" // 0123456789, text/plain, tag colour=blue, SHA-256; the newest of two versions
	seededText = "0123456789"
	seededPart = "seed/part.bin" // partSize bytes
	partSize   = 5 << 20
	olderText  = "first"
)

// session is a client with what it presents.
type session struct {
	caller

	ctx       context.Context
	run       string // prefix of the keys that only it writes
	current   bool   // it presents the current grant
	checksums []string
}

// namedCase is something that clients do.
type namedCase struct {
	name string
	do   func(session) error
}

// writes are the cases that need a grant, in order.
var writes = []namedCase{
	{"put", func(s session) error { return s.write("PutObject", "put", input{}) }},
	{"put with checksum", func(s session) (first error) { // with each algorithm, which must fare alike
		for i, algorithm := range s.checksums {
			err := s.write("PutObject", "checksum-"+algorithm, input{ChecksumAlgorithm: algorithm})
			if i == 0 {
				first = err
			}
			if one, other := outcome(first), outcome(err); one != other {
				return fmt.Errorf("%s with %s, %s with %s", one, s.checksums[0], other, algorithm)
			}
		}
		return first
	}},
	{"put if none match", func(s session) error {
		if err := s.write("PutObject", "once", input{IfNoneMatch: "*"}); err != nil {
			return err
		}
		return refused(http.StatusPreconditionFailed, "PreconditionFailed", s.write("PutObject", "once", input{IfNoneMatch: "*", Body: "second"}))
	}},
	{"put if match", func(s session) error {
		if err := s.write("PutObject", "match", input{IfNoneMatch: "*"}); err != nil {
			return err
		}
		head, err := s.do("HeadObject", input{Key: s.run + "match"})
		if err == nil {
			err = s.write("PutObject", "match", input{IfMatch: head.ETag, Body: "second"})
		}
		if err != nil {
			return err
		}
		return refused(http.StatusPreconditionFailed, "PreconditionFailed", s.write("PutObject", "match", input{IfMatch: head.ETag, Body: "third"}))
	}},
	{"multipart", session.multipart},
	{"copy", func(s session) error {
		if _, err := s.do("CopyObject", input{Key: s.run + "copy", CopySource: bucket + "/" + seeded}); err != nil {
			return err
		}
		return s.holds(input{Key: s.run + "copy"}, seededText)
	}},
	{"part copy", func(s session) error {
		sources := []input{{CopySource: bucket + "/" + seededPart, CopySourceRange: fmt.Sprintf("bytes=0-%d", partSize-1)}, {CopySource: bucket + "/" + seeded, CopySourceRange: "bytes=2-4"}}
		return s.parts("part copy", strings.Repeat("p", partSize)+"234", "UploadPartCopy", sources)
	}},
	{"put tags", func(s session) error {
		_, err := s.do("PutObjectTagging", input{Key: s.ownOrSeeded("put"), Tagging: tagSet{[]tag{{"size", "small"}}}})
		return err
	}},
	{"delete tags", func(s session) error {
		_, err := s.do("DeleteObjectTagging", input{Key: s.ownOrSeeded("put")})
		return err
	}},
	{"delete", func(s session) error { _, err := s.do("DeleteObject", input{Key: s.ownOrSeeded("put")}); return err }},
	{"delete many", func(s session) error {
		a, err := s.do("DeleteObjects", input{Delete: &deletion{[]object{{s.ownOrSeeded("copy")}, {s.ownOrSeeded("multipart")}}}})
		if err == nil && len(a.Errors) > 0 {
			err = &refusal{code: a.Errors[0].Code}
		}
		return err
	}},
	{"delete a version", func(s session) error {
		key := s.ownOrSeeded("twice")
		if s.current {
			if err := errors.Join(s.write("PutObject", "twice", input{}), s.write("PutObject", "twice", input{Body: "second"})); err != nil {
				return err
			}
		}
		versions, err := s.versions(key)
		if err == nil {
			_, err = s.do("DeleteObject", input{Key: key, VersionID: versions[1].VersionID})
		}
		return err
	}},
	{"presigned put", func(s session) error {
		a, err := s.do("PresignPutObject", input{Key: s.run + "presigned"})
		if err == nil {
			_, err = fetch(s.ctx, http.MethodPut, a, "hello")
		}
		return err
	}},
	{"chunk-signed put", func(s session) error {
		return s.write("PutChunked", "chunks", input{Body: strings.Repeat("b", 200_000)})
	}},
	{"chunk-signed put, trailing checksum", func(s session) error {
		return s.write("PutTrailing", "trailing", input{Body: strings.Repeat("b", 200_000)})
	}},
}

var reads = []namedCase{
	{"get", func(s session) error { return s.holds(input{Key: seeded}, seededText) }},
	{"range", func(s session) error {
		a, err := s.do("GetObject", input{Key: seeded, Range: "bytes=2-4"})
		return errors.Join(err, same("the range", a.Body, "234"), same("Content-Range", a.ContentRange, "bytes 2-4/10"))
	}},
	{"conditional get", func(s session) error {
		head, err := s.do("HeadObject", input{Key: seeded})
		if err == nil {
			err = s.holds(input{Key: seeded, IfMatch: head.ETag}, seededText)
		}
		if err != nil {
			return err
		}
		_, err = s.do("GetObject", input{Key: seeded, IfNoneMatch: head.ETag})
		return refused(http.StatusNotModified, "304", err)
	}},
	{"response overrides", func(s session) error {
		a, err := s.do("GetObject", input{Key: seeded, ResponseContentType: "application/json"})
		return errors.Join(err, same("Content-Type", a.ContentType, "application/json"))
	}},
	{"head", func(s session) error {
		a, err := s.do("HeadObject", input{Key: seeded})
		return errors.Join(err, same("the head", []any{a.ContentLength, a.ContentType, a.Metadata["by"]}, []any{10, "text/plain", "conformance"}))
	}},
	{"list v1", func(s session) error { return s.lists("ListObjects") }},
	{"list v2", func(s session) error {
		if err := s.lists("ListObjectsV2"); err != nil {
			return err
		}
		a, err := s.do("ListObjectsV2", input{Prefix: "se", Delimiter: "/"})
		return errors.Join(err, same("the common prefixes", a.CommonPrefixes, []prefix{{"seed/"}}))
	}},
	{"list versions", func(s session) error { _, err := s.versions(seeded); return err }},
	{"get a version", func(s session) error {
		versions, err := s.versions(seeded)
		if err != nil {
			return err
		}
		return s.holds(input{Key: seeded, VersionID: versions[1].VersionID}, olderText)
	}},
	{"attributes", func(s session) error {
		a, err := s.do("GetObjectAttributes", input{Key: seeded, ObjectAttributes: []string{"ObjectSize", "Checksum"}})
		return errors.Join(err, same("the attributes", []any{a.ObjectSize, a.Checksum.ChecksumSHA256 != ""}, []any{10, true}))
	}},
	{"get tags", func(s session) error {
		a, err := s.do("GetObjectTagging", input{Key: seeded})
		return errors.Join(err, same("the tags", a.TagSet, []tag{{"colour", "blue"}}))
	}},
	{"presigned get", func(s session) error {
		a, err := s.do("PresignGetObject", input{Key: seeded})
		if err != nil {
			return err
		}
		got, err := fetch(s.ctx, http.MethodGet, a, "")
		return errors.Join(err, same("the object", got, seededText))
	}},
	{"checksum", func(s session) error {
		for _, operation := range []string{"GetObject", "HeadObject"} {
			a, err := s.do(operation, input{Key: seeded, ChecksumMode: "ENABLED"})
			if err := errors.Join(err, same(operation+" has a checksum", a.ChecksumSHA256 != "", true)); err != nil {
				return err
			}
		}
		return nil
	}},
}

var cases = slices.Concat(writes, reads)

func (s session) do(operation string, in input) (answer, error) {
	in.Bucket = bucket
	return s.call(s.ctx, operation, in)
}

// write writes an own object, by default "first", and reads it.
func (s session) write(operation, name string, in input) error {
	in.Key = s.run + name
	if in.Body == "" {
		in.Body = olderText
	}
	if _, err := s.do(operation, in); err != nil {
		return err
	}
	return s.holds(input{Key: in.Key}, in.Body)
}

func (s session) holds(in input, want string) error {
	a, err := s.do("GetObject", in)
	if err != nil {
		return err
	}
	return same(in.Key, a.Body, want)
}

// ownOrSeeded is an own key with a current grant. Without one the client has no object of its own, and the seeded ones
// must not change.
func (s session) ownOrSeeded(name string) string {
	if s.current {
		return s.run + name
	}
	return seeded
}

// multipart uploads by the client's own way, if it has one, and else part by part.
func (s session) multipart() error {
	data := []input{{Body: strings.Repeat("a", partSize)}, {Body: "end"}}
	err := s.write("Upload", "multipart", input{Body: strings.Repeat("a", 2*partSize)})
	if errors.Is(err, errNotOffered) {
		err = s.parts("multipart", data[0].Body+data[1].Body, "UploadPart", data)
	}
	return err
}

// parts uploads in parts, each by an operation.
func (s session) parts(name, want, operation string, each []input) error {
	key := s.run + name
	begun, err := s.do("CreateMultipartUpload", input{Key: key})
	if err != nil {
		return err
	}
	var done completed
	for i, in := range each {
		in.Key, in.UploadID, in.PartNumber = key, begun.UploadID, i+1
		a, err := s.do(operation, in)
		if err != nil {
			return err
		}
		done.Parts = append(done.Parts, part{a.ETag + a.CopyPartResult.ETag, i + 1})
	}
	listed, err := s.do("ListParts", input{Key: key, UploadID: begun.UploadID})
	if err := errors.Join(err, same("the number of parts", len(listed.Parts), len(each))); err != nil {
		return err
	}
	if _, err = s.do("CompleteMultipartUpload", input{Key: key, UploadID: begun.UploadID, MultipartUpload: &done}); err != nil {
		return err
	}
	return s.holds(input{Key: key}, want)
}

func (s session) versions(key string) ([]version, error) {
	a, err := s.do("ListObjectVersions", input{Prefix: key})
	return a.Versions, errors.Join(err, same("the number of versions", len(a.Versions), 2))
}

// lists lists the seeded objects one by one, so that there are several pages.
func (s session) lists(operation string) error {
	a, err := s.do(operation, input{Prefix: "seed/", Pages: true})
	return errors.Join(err, same("the list", a.Contents, []object{{seeded}, {seededPart}}))
}

// same compares a read value.
func same(what string, got, want any) error {
	if g, w := fmt.Sprint(got), fmt.Sprint(want); g != w {
		return fmt.Errorf("%s is %.60q, wanted %.60q", what, g, w)
	}
	return nil
}

// refused turns an expected refusal into success, and everything else into an error.
func refused(status int, code string, err error) error {
	if r, ok := errors.AsType[*refusal](err); ok && (r.status == status || r.status == 0) && (r.code == code || r.status == http.StatusNotModified) {
		return nil
	}
	return fmt.Errorf("wanted %d %s, got %v", status, code, err) //nolint:errorlint // its own code must not be seen
}

// outcome is how a case ended.
func outcome(err error) string {
	if r, ok := errors.AsType[*refusal](err); ok {
		return r.Error()
	}
	switch {
	case err == nil:
		return "ok"
	case errors.Is(err, errNotOffered):
		return notOffered
	}
	return "failed: " + strings.ReplaceAll(err.Error(), "\n", " ")
}

// seed writes the objects that all clients read.
func seed(ctx context.Context, addr string, c credentials.Credentials) error {
	sdk, err := newSDK(ctx, addr, c)
	s := session{caller: sdk, ctx: ctx}
	for _, text := range []string{olderText, seededText} {
		if err == nil {
			_, err = s.do("PutObject", input{
				Key: seeded, Body: text, ContentType: "text/plain", ChecksumAlgorithm: "SHA256", Metadata: map[string]string{"by": "conformance"},
				Tagging: "colour=blue",
			})
		}
	}
	if err == nil {
		_, err = s.do("PutObject", input{Key: seededPart, Body: strings.Repeat("p", partSize)})
	}
	return err
}
