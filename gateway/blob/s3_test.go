//go:build unix

package blob_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/credentials"

	"github.com/fencegate/fencegate/gateway/blob"
	"github.com/fencegate/fencegate/gateway/blob/blobtest"
	"github.com/fencegate/fencegate/internal/testenv/s3posix"
)

// openS3 opens a store below a prefix of its own on the service.
func openS3(t *testing.T, endpoint string, change ...func(*blob.S3Config)) *blob.S3 {
	t.Helper()
	cfg := blob.S3Config{
		Bucket: s3posix.Bucket, Prefix: "fencegate/" + blob.NewID().String(), Endpoint: endpoint, Region: "us-east-1", PathStyle: true,
		Credentials: credentials.NewStaticCredentialsProvider(s3posix.Access, s3posix.Secret, ""),
	}
	for _, c := range change {
		c(&cfg)
	}
	s, err := blob.OpenS3(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func TestS3Conforms(t *testing.T) {
	t.Parallel()
	server := s3posix.Start(t)
	t.Run("suite", func(t *testing.T) {
		t.Parallel()
		blobtest.Run(t, func(t *testing.T) blob.Store { t.Helper(); return openS3(t, server.URL()) })
	})
}

// TestAnotherS3Conforms runs the suite on the service at a given address, as make test-minio does. Each test uses a
// prefix of its own.
func TestAnotherS3Conforms(t *testing.T) {
	t.Parallel()
	location := os.Getenv("FENCEGATE_TEST_BLOBS")
	if location == "" {
		return // no address given
	}
	cfg, err := blob.ParseS3(location)
	if err != nil {
		t.Fatal(err)
	}
	blobtest.Run(t, func(t *testing.T) blob.Store {
		t.Helper()
		cfg := cfg
		cfg.Prefix += "/" + blob.NewID().String()
		s, err := blob.OpenS3(t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = s.Close() })
		if err := blob.Probe(t.Context(), s); err != nil {
			t.Error(err)
		}
		return s
	})
}

func TestBothStoresPassTheProbeAndKeepNothingOfIt(t *testing.T) {
	t.Parallel()
	server := s3posix.Start(t)
	for name, store := range map[string]blob.Store{"dir": openDir(t), "s3": openS3(t, server.URL())} {
		if err := blob.Probe(t.Context(), store); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		for info, err := range store.All(t.Context()) {
			t.Errorf("%s: left %v, %v", name, info, err)
		}
	}
}

func TestS3ListsMoreThanAPageAndPassesOverStrangers(t *testing.T) {
	t.Parallel()
	server := s3posix.Start(t)
	prefix := "many"
	s := openS3(t, server.URL(), func(c *blob.S3Config) { c.Prefix = prefix })
	folder := filepath.Join(server.Folder, "data", s3posix.Bucket, prefix)
	const want = 2100
	for range want { // written below the service, which takes files in its folder for objects
		id := blob.NewID().String()
		path := filepath.Join(folder, id[30:], id)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte("x"), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	for _, stranger := range []string{"README", "ab/README", blob.NewID().String(), "ab/ab/" + strings.Repeat("a", 30) + "ab"} {
		path := filepath.Join(folder, stranger)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte("x"), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	seen := map[blob.ID]bool{}
	for info, err := range s.All(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		seen[info.ID] = true
	}
	if len(seen) != want {
		t.Errorf("All listed %d blobs, want %d", len(seen), want)
	}
}

func TestS3RefusesWhatOnePutCannotStoreAndReadsNothing(t *testing.T) {
	t.Parallel()
	s := openS3(t, "http://127.0.0.1:9")
	r := strings.NewReader("unread")
	err := s.Put(t.Context(), blob.NewID(), r, blob.MaxS3Blob+1)
	if !errors.Is(err, blob.ErrTooLarge) || !strings.Contains(err.Error(), "5368709120") || r.Len() != 6 {
		t.Errorf("got %v, %d bytes left", err, r.Len())
	}
}

func TestABucketThatIsNotThereIsNoMissingBlob(t *testing.T) {
	t.Parallel()
	server := s3posix.Start(t)
	s := openS3(t, server.URL(), func(c *blob.S3Config) { c.Bucket = "elsewhere" })
	if _, err := s.Open(t.Context(), blob.NewID(), 0, 1); err == nil || errors.Is(err, blob.ErrNotFound) {
		t.Errorf("Open: got %v", err)
	}
	if _, err := s.Owner(t.Context()); err == nil {
		t.Error("Owner: no error")
	}
	if err := blob.Probe(t.Context(), s); err == nil || !strings.Contains(err.Error(), "NoSuchBucket") {
		t.Errorf("Probe: got %v", err)
	}
}

func TestErrorsOfS3ShowNoSecret(t *testing.T) {
	t.Parallel()
	server := s3posix.Start(t)
	s := openS3(t, server.URL(), func(c *blob.S3Config) {
		c.Credentials = credentials.NewStaticCredentialsProvider(s3posix.Access, "s3cr3t-key", "")
	})
	err := blob.Probe(t.Context(), s)
	if err == nil || strings.Contains(err.Error(), "s3cr3t") || !strings.Contains(err.Error(), "403") {
		t.Errorf("got %v", err)
	}
}

func TestASlowClientIsNotTheServicesStall(t *testing.T) {
	t.Parallel()
	server := s3posix.Start(t)
	s := openS3(t, server.URL(), func(c *blob.S3Config) { c.Stall = 5 * time.Second })
	pause := onPause(6 * time.Second)
	data := bytes.Repeat([]byte("0123456789abcdef"), 1<<16)
	id := blob.NewID()
	if err := s.Put(t.Context(), id, bytes.NewReader(data), int64(len(data))); err != nil {
		t.Fatal(err)
	}
	t.Run("sending", func(t *testing.T) {
		t.Parallel()
		r := io.MultiReader(bytes.NewReader(data[:100]), pause, bytes.NewReader(data[100:]))
		if err := s.Put(t.Context(), blob.NewID(), r, int64(len(data))); err != nil {
			t.Error(err)
		}
	})
	t.Run("reading", func(t *testing.T) {
		t.Parallel()
		r, err := s.Open(t.Context(), id, 0, int64(len(data)))
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(io.MultiReader(io.LimitReader(r, 100), pause, r))
		if err := errors.Join(err, r.Close()); err != nil || !bytes.Equal(got, data) {
			t.Errorf("%d bytes, %v", len(got), err)
		}
	})
}

// onPause is an empty reader that pauses first.
type onPause time.Duration

func (p onPause) Read([]byte) (int, error) {
	<-time.After(time.Duration(p))
	return 0, io.EOF
}

func TestAFrozenServiceEndsNoCallLate(t *testing.T) {
	t.Parallel()
	server := s3posix.Start(t)
	s := openS3(t, server.URL(), func(c *blob.S3Config) {
		c.Prefix, c.Stall, c.Timeout = "same", 500*time.Millisecond, 500*time.Millisecond
	})
	patient := openS3(t, server.URL(), func(c *blob.S3Config) { c.Prefix = "same" })
	id := blob.NewID()
	data := bytes.Repeat([]byte("x"), 8<<20)
	if err := patient.Put(t.Context(), id, bytes.NewReader(data), int64(len(data))); err != nil {
		t.Fatal(err)
	}
	var r io.ReadCloser
	for { // on a busy machine even a healthy service may be too slow for this
		var err error
		if r, err = s.Open(t.Context(), id, 0, int64(len(data))); err == nil {
			break
		}
	}
	if err := server.Freeze(); err != nil {
		t.Fatal(err)
	}
	for what, call := range map[string]func() error{
		"a reader under way": func() error { _, err := io.Copy(io.Discard, r); return errors.Join(err, r.Close()) },
		"Put":                func() error { return s.Put(t.Context(), blob.NewID(), bytes.NewReader(data), int64(len(data))) },
		"Open":               func() error { _, err := s.Open(t.Context(), id, 0, 1); return err },
		"Size":               func() error { _, err := s.Size(t.Context(), id); return err },
		"Delete":             func() error { return s.Delete(t.Context(), blob.NewID()) },
		"Owner":              func() error { _, err := s.Owner(t.Context()); return err },
	} {
		if err := call(); err == nil || errors.Is(err, blob.ErrNotFound) {
			t.Errorf("%s: got %v", what, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.Open(ctx, id, 0, 1); !errors.Is(err, context.Canceled) {
		t.Errorf("Open without time: %v", err)
	}
	if err := server.Thaw(); err != nil {
		t.Fatal(err)
	}
	if err := patient.Put(t.Context(), blob.NewID(), strings.NewReader("again"), 5); err != nil {
		t.Errorf("afterwards: %v", err)
	}
}

func TestLocationsAreReadAndNothingSecretIsTakenOrShown(t *testing.T) {
	t.Parallel()
	for location, want := range map[string]blob.S3Config{
		"s3://b":                        {Bucket: "b"},
		"s3://b/p/q/":                   {Bucket: "b", Prefix: "p/q"},
		"s3://b?region=eu-west-1":       {Bucket: "b", Region: "eu-west-1"},
		"s3://b?endpoint=http://h:9000": {Bucket: "b", Endpoint: "http://h:9000", PathStyle: true},
		"s3://b?endpoint=https://h&path-style=false&connections=9": {Bucket: "b", Endpoint: "https://h", Connections: 9},
	} {
		if got, err := blob.ParseS3(location); err != nil || got != want {
			t.Errorf("%s: got %+v, %v", location, got, err)
		}
	}
	for _, location := range []string{
		"s3://", "s3:b", "s3:///p", "s3://key:hunter2@b", "s3://b?secret=hunter2", "s3://b?endpoint=ftp://h", "s3://b?endpoint=http://u:hunter2@h",
		"s3://b?endpoint=http://h/path", "s3://b?path-style=maybe", "s3://b?connections=0", "s3://b?connections=x", "s3://b#hunter2", "s3://b?%zz=hunter2",
	} {
		_, err := blob.ParseS3(location)
		if err == nil || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: got %v", location, err)
		}
	}
	for _, location := range []string{"dir:" + t.TempDir(), t.TempDir(), "s3://bucket/prefix?region=eu-west-1"} {
		if _, err := blob.OpenAt(t.Context(), location); err != nil {
			t.Errorf("%s: %v", location, err)
		}
	}
}

func TestTheEndpointMayComeFromTheEnvironment(t *testing.T) {
	server := s3posix.Start(t)
	t.Setenv("AWS_ENDPOINT_URL_S3", server.URL())
	t.Setenv("AWS_ACCESS_KEY_ID", s3posix.Access)
	t.Setenv("AWS_SECRET_ACCESS_KEY", s3posix.Secret)
	s, err := blob.OpenAt(t.Context(), "s3://"+s3posix.Bucket+"/prefix?path-style=true")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.(io.Closer).Close() }()
	if err := blob.Probe(t.Context(), s); err != nil {
		t.Error(err)
	}
}
