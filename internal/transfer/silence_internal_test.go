package transfer

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/s3"
)

// stopping is an S3 port that sends a part of an object, and then nothing. It runs on a bubble's clock.
type stopping struct{}

func (stopping) Do(req *http.Request) (*http.Response, error) {
	r, w := io.Pipe()
	go func() {
		_, _ = io.WriteString(w, "abc")
		<-req.Context().Done()
		_ = w.CloseWithError(req.Context().Err())
	}()
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, ContentLength: -1, Body: r, Request: req}, nil
}

func TestAnObjectThatStopsInItsMiddleEndsTheRead(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := &Client{s3: s3.New(s3.Options{Region: "us-east-1", HTTPClient: stopping{}, Credentials: credentials.NewStaticCredentialsProvider("a", "b", "c")})}
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		began, text := time.Now(), new(strings.Builder)
		if err := c.Cat(ctx, Object{Bucket: "orders", Key: "x"}, text, Options{}); !errors.Is(err, errSilent) || text.String() != "abc" {
			t.Errorf("%q, %v", text, err)
		}
		if took := time.Since(began); took != silence {
			t.Errorf("took %v", took)
		}
	})
}

func TestAnAnswerIsNotAwaitedWithoutEnd(t *testing.T) {
	t.Parallel()
	hc, ok := New(Config{Endpoint: "http://s3.invalid"}).s3.Options().HTTPClient.(interface{ GetTransport() *http.Transport })
	if !ok || hc.GetTransport().ResponseHeaderTimeout != answerTimeout {
		t.Errorf("%T", hc)
	}
}
