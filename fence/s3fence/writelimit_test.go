package s3fence

import (
	"bytes"
	"errors"
	"net"
	"net/http"
	"os"
	"testing"
	"time"
)

func TestAPeerThatStopsReadingEndsARequest(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	go func() {
		if c, err := l.Accept(); err == nil {
			<-t.Context().Done() // it reads nothing
			_ = c.Close()
		}
	}()
	transport := &http.Transport{DialContext: writesWithin(100*time.Millisecond, new(net.Dialer).DialContext), ResponseHeaderTimeout: time.Hour}
	defer transport.CloseIdleConnections()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPut, "http://"+l.Addr().String(), bytes.NewReader(make([]byte, 64<<20)))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := transport.RoundTrip(req)
	if err == nil {
		_ = resp.Body.Close()
	}
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("got %v, want a timeout", err)
	}
}
