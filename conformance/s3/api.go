package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"reflect"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/config"
	awscreds "github.com/aws/aws-sdk-go-v2/credentials"
	awss3 "github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/smithy-go"

	"github.com/fencegate/fencegate/gateway/s3/credentials"
)

// caller is a client, which calls operations of the S3 API, by their names. Besides those it knows PutChunked and PutTrailing, uploads
// whose chunks are signed, without and with a checksum behind them; Upload, its own way to upload much; and PresignX,
// whose answer is a URL.
type caller interface {
	call(ctx context.Context, operation string, in input) (answer, error)
	close() error
}

// input are an operation's parameters, in the API's JSON.
type input struct {
	Bucket                                           string
	Key                                              string            `json:",omitempty"`
	Body                                             string            `json:"-"`
	ContentType, CopySource, CopySourceRange         string            `json:",omitempty"`
	ChecksumAlgorithm, ChecksumMode                  string            `json:",omitempty"`
	IfMatch, IfNoneMatch, Range, ResponseContentType string            `json:",omitempty"`
	VersionID                                        string            `json:"VersionId,omitempty"`
	UploadID                                         string            `json:"UploadId,omitempty"`
	PartNumber                                       int               `json:",omitempty"`
	MultipartUpload                                  *completed        `json:",omitempty"`
	Metadata                                         map[string]string `json:",omitempty"`
	Tagging                                          any               `json:",omitempty"` // a tagSet, or of PutObject a query
	Delete                                           *deletion         `json:",omitempty"`
	ObjectAttributes                                 []string          `json:",omitempty"`

	Prefix, Delimiter, Marker, ContinuationToken string `json:",omitempty"`
	MaxKeys                                      int    `json:",omitempty"`
	Pages                                        bool   `json:"-"` // list in pages of one key; the answer has all
}

type (
	part struct {
		ETag       string
		PartNumber int
	}
	completed struct{ Parts []part }
	tag       struct{ Key, Value string }
	tagSet    struct{ TagSet []tag }
	object    struct{ Key string }
	prefix    struct{ Prefix string }
	deletion  struct{ Objects []object }
	version   struct {
		VersionID string `json:"VersionId"`
	}
)

// answer are an operation's results, as far as the cases look at them.
type answer struct {
	Body, ETag, ContentType, ContentRange string
	ContentLength, ObjectSize             int
	ChecksumSHA256                        string
	Checksum                              struct{ ChecksumSHA256 string }
	Metadata                              map[string]string
	UploadID                              string `json:"UploadId"`
	CopyPartResult                        part
	Parts                                 []part
	TagSet                                []tag
	Errors                                []struct{ Code string }
	Contents                              []object
	CommonPrefixes                        []prefix
	Versions                              []version
	IsTruncated                           bool
	NextContinuationToken                 string
	URL                                   string
	SignedHeader                          http.Header
}

// errNotOffered reports that the client does not offer the operation.
var errNotOffered = errors.New("not offered")

// refusal is the server's refusal, as far as the client shows it.
type refusal struct {
	status int // 0: not shown
	code   string
}

func (r *refusal) Error() string { return strings.TrimPrefix(fmt.Sprint(r.status, " ", r.code), "0 ") }

// sdk is aws-sdk-go-v2, whose methods have the operations' names.
type sdk struct{ *awss3.Client }

func newSDK(ctx context.Context, addr string, c credentials.Credentials) (caller, error) {
	cfg, err := config.LoadDefaultConfig(ctx, config.WithRegion("us-east-1"), config.WithRetryMaxAttempts(1),
		config.WithSharedConfigFiles([]string{}), config.WithSharedCredentialsFiles([]string{}), // not the user's
		config.WithCredentialsProvider(awscreds.NewStaticCredentialsProvider(c.AccessKeyID, c.SecretAccessKey, c.SessionToken)))
	return sdk{awss3.NewFromConfig(cfg, func(o *awss3.Options) {
		o.BaseEndpoint, o.UsePathStyle, o.DisableLogOutputChecksumValidationSkipped = aws.String("http://"+addr), true, true
	})}, err
}

func (sdk) close() error { return nil }

func (s sdk) call(ctx context.Context, operation string, in input) (a answer, err error) {
	if in.Pages {
		return s.pages(ctx, operation, in)
	}
	method := reflect.ValueOf(s.Client).MethodByName(operation)
	if strings.HasPrefix(operation, "Presign") {
		method = reflect.ValueOf(awss3.NewPresignClient(s.Client)).MethodByName(operation)
	}
	switch {
	case operation == "PutChunked" || operation == "PutTrailing" || operation == "Upload":
		return a, errNotOffered
	case !method.IsValid():
		return a, fmt.Errorf("aws-sdk-go-v2 has no %s", operation)
	}
	arguments := reflect.New(method.Type().In(1).Elem())
	if err := translate(in, arguments.Interface()); err != nil {
		return a, err
	}
	if body := arguments.Elem().FieldByName("Body"); body.IsValid() && in.Body != "" {
		body.Set(reflect.ValueOf(strings.NewReader(in.Body)))
	}
	results := method.Call([]reflect.Value{reflect.ValueOf(ctx), arguments})
	if err, failed := reflect.TypeAssert[error](results[1]); failed {
		return a, ofSDK(err)
	}
	if out, read := reflect.TypeAssert[*awss3.GetObjectOutput](results[0]); read {
		data, err := io.ReadAll(out.Body)
		if err = errors.Join(err, out.Body.Close()); err != nil {
			return a, err
		}
		out.Body = nil
		err = translate(out, &a)
		a.Body = string(data)
		return a, err
	}
	return a, translate(results[0].Interface(), &a)
}

// pages lists in pages of one key.
func (s sdk) pages(ctx context.Context, operation string, in input) (all answer, err error) {
	in.Pages, in.MaxKeys = false, 1
	for {
		page, err := s.call(ctx, operation, in)
		if err != nil {
			return all, err
		}
		all.Contents = append(all.Contents, page.Contents...)
		if !page.IsTruncated {
			return all, nil
		}
		if in.ContinuationToken = page.NextContinuationToken; operation == "ListObjects" {
			in.Marker = all.Contents[len(all.Contents)-1].Key
		}
	}
}

func translate(from, to any) error {
	text, err := json.Marshal(from)
	if err != nil {
		return err
	}
	return json.Unmarshal(text, to)
}

func ofSDK(err error) error {
	var r refusal
	if e, ok := errors.AsType[smithy.APIError](err); ok {
		r.code = e.ErrorCode()
	}
	if e, ok := errors.AsType[interface {
		error
		HTTPStatusCode() int
	}](err); ok {
		r.status = e.HTTPStatusCode()
	}
	if r == (refusal{}) {
		return err
	}
	return &r
}

// upload puts standard input, a file, to $KEY of $BUCKET, using aws-sdk-go-v2 with its defaults.
func upload(ctx context.Context) error {
	cfg, err := config.LoadDefaultConfig(ctx)
	if err != nil {
		return err
	}
	_, err = awss3.NewFromConfig(cfg).PutObject(ctx, &awss3.PutObjectInput{Bucket: aws.String(os.Getenv("BUCKET")), Key: aws.String(os.Getenv("KEY")), Body: os.Stdin})
	return err
}

// fetch sends a presigned request.
func fetch(ctx context.Context, method string, presigned answer, body string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, method, presigned.URL, strings.NewReader(body))
	if err != nil {
		return "", err
	}
	for name, values := range presigned.SignedHeader {
		if name != "Host" {
			req.Header[name] = values
		}
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer func() { _ = res.Body.Close() }()
	data, err := io.ReadAll(res.Body)
	if err == nil && res.StatusCode != http.StatusOK {
		_, rest, _ := strings.Cut(string(data), "<Code>")
		code, _, _ := strings.Cut(rest, "</Code>")
		err = &refusal{res.StatusCode, code}
	}
	return string(data), err
}
