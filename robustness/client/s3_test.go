package client

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/fencegate/fencegate/robustness/history"
)

var s3Surfaces = []string{"s3-small", "s3-large", "s3-multipart", "s3-slow", "s3-boto3", "publish"}

// TestS3Surfaces runs these rules for each surface on one stack.
func TestS3Surfaces(t *testing.T) {
	t.Parallel()
	w := newS3World(t)
	for _, name := range s3Surfaces {
		for rule, holds := range map[string]func(*testing.T, *s3World, string){
			"what is written is read":                                   writtenIsRead,
			"a superseded holder's write is refused and leaves nothing": staleIsRefused,
			"a write that is given up half way leaves nothing":          halfIsNothing,
			"a lost answer is unknown or repeated":                      lostAnswer,
			"another's bytes are seen":                                  damageIsFound,
		} {
			t.Run(name+": "+rule, func(t *testing.T) { t.Parallel(); holds(t, w, name) })
		}
	}
	t.Run("publish: a lost COMMIT is reported as it is", func(t *testing.T) { t.Parallel(); lostCommit(t, w) })
	t.Run("s3-boto3: a killed Python is followed by another", func(t *testing.T) { t.Parallel(); pythonKilled(t, w) })
}

func writtenIsRead(t *testing.T, w *s3World, name string) {
	t.Helper()
	s, resource := w.surface(t, name, 7), w.resource(t)
	h := acquire(t, s, resource)
	saw := map[string]string{}
	for i := range 12 {
		for _, r := range s.registers(resource) {
			value, wrong, err := h.read(bounded(t), r)
			if err != nil || wrong != "" || value != saw[r] {
				t.Fatalf("turn %d: read %q, %q, %v; want %q", i, value, wrong, err, saw[r])
			}
		}
		if err := h.renew(bounded(t)); err != nil {
			t.Fatal(err)
		}
		id := fmt.Sprintf("c1.1-%d", i)
		err := h.write(bounded(t), to(id, nil))
		if outcome, code := outcomeOf(err); outcome != history.Done {
			if code == "aborted" {
				continue
			}
			t.Fatalf("turn %d: %s %s: %v", i, outcome, code, err)
		}
		for _, r := range s.registers(resource) {
			saw[r] = id
			if done := w.effects(t, r); !slices.Contains(done, id) {
				t.Errorf("%s has had the values %q, and not %s", r, done, id)
			}
		}
	}
	if err := h.release(bounded(t)); err != nil {
		t.Error(err)
	}
}

// staleIsRefused lets another client acquire in each of a write's pauses.
func staleIsRefused(t *testing.T, w *s3World, name string) {
	t.Helper()
	for i := range 8 {
		s, resource := w.surface(t, name, uint64(i)), w.resource(t)
		h := acquire(t, s, resource)
		taken := false
		err := h.write(bounded(t), to("stale", func(context.Context) { // an early answer ends the pause's context
			if taken {
				return
			}
			taken = true
			if _, err := w.api(t).Revoke(t.Context(), resource, "test"); err != nil {
				t.Error(err)
			}
		}))
		outcome, code := outcomeOf(err)
		if !taken || outcome == history.Done || outcome == history.Unknown {
			t.Errorf("choice %d: paused %v: %s %s: %v", i, taken, outcome, code, err)
		}
		for _, r := range s.registers(resource) {
			if done := w.effects(t, r); len(done) > 0 {
				t.Errorf("choice %d: %s has had the values %q", i, r, done)
			}
		}
	}
}

// halfIsNothing abandons the write in its first pause. A write that has not begun is Failed, otherwise Unknown.
func halfIsNothing(t *testing.T, w *s3World, name string) {
	t.Helper()
	for i := range 6 {
		s, resource := w.surface(t, name, uint64(i)), w.resource(t)
		h := acquire(t, s, resource)
		ctx, giveUp := context.WithCancel(bounded(t))
		err := h.write(ctx, to("half", func(context.Context) { giveUp() }))
		if outcome, code := outcomeOf(err); outcome == history.Done || outcome == history.Refused {
			t.Errorf("choice %d: %s %s: %v", i, outcome, code, err)
		}
		giveUp()
		if _, err := w.api(t).Revoke(t.Context(), resource, "test"); err != nil { // the write is too late from now on
			t.Fatal(err)
		}
		for _, r := range s.registers(resource) {
			if done := w.effects(t, r); len(done) > 0 {
				t.Errorf("choice %d: %s has had the values %q", i, r, done)
			}
		}
	}
}

// lostAnswer cuts the connection instead of the first answer to a mutating call. Either the library repeats the call,
// which then counts once, or the outcome is unknown.
func lostAnswer(t *testing.T, w *s3World, name string) {
	t.Helper()
	for i := range 6 {
		behind := *w
		lost := behind.losing(t)
		s, resource := behind.surface(t, name, uint64(i)), w.resource(t)
		h := acquire(t, s, resource)
		err := h.write(bounded(t), to("lost", nil))
		outcome, code := outcomeOf(err)
		if !lost.Load() || outcome == history.Refused || name != "publish" && outcome == history.Failed && code != "aborted" {
			t.Errorf("choice %d: lost %v: %s %s: %v", i, lost.Load(), outcome, code, err)
		}
		w.agree(t, s, resource, "lost", outcome)
	}
}

// agree compares the writer's outcome with the effects.
func (w *s3World) agree(t *testing.T, s surface, resource, id string, outcome history.Outcome) {
	t.Helper()
	for _, r := range s.registers(resource) {
		done := w.effects(t, r)
		once := len(done) == 1 && done[0] == id
		if !once && len(done) > 0 || outcome != history.Unknown && once != (outcome == history.Done) {
			t.Errorf("the outcome is %s, and %s has had the values %q", outcome, r, done)
		}
	}
}

// losing puts a proxy before each S3 port. Together they lose one answer: the one that commits.
func (w *s3World) losing(t *testing.T) *atomic.Bool {
	t.Helper()
	lost := new(atomic.Bool)
	w.cfg.Gateways = slices.Clone(w.cfg.Gateways)
	for i := range w.cfg.Gateways {
		upstream, err := url.Parse(w.cfg.Gateways[i].S3)
		if err != nil {
			t.Fatal(err)
		}
		cut := func(res *http.Response) error {
			q := res.Request.URL.Query()
			commits := res.Request.Method == http.MethodPut && !q.Has("partNumber") ||
				res.Request.Method == http.MethodPost && q.Has("uploadId")
			if commits && lost.CompareAndSwap(false, true) {
				return errors.New("lost")
			}
			return nil
		}
		proxy := httptest.NewServer(&httputil.ReverseProxy{
			Rewrite: func(r *httputil.ProxyRequest) {
				r.Out.URL.Scheme, r.Out.URL.Host, r.Out.Host = upstream.Scheme, upstream.Host, r.In.Host // it is signed
			},
			ModifyResponse: cut,
			ErrorHandler:   func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
		})
		t.Cleanup(proxy.Close)
		w.cfg.Gateways[i].S3 = proxy.URL
	}
	return lost
}

// damageIsFound reads an object whose bytes do not match its metadata.
func damageIsFound(t *testing.T, w *s3World, name string) {
	t.Helper()
	s, resource := w.surface(t, name, 1), w.resource(t)
	h := acquire(t, s, resource)
	register := fileRegister(resource)
	inner, ok := h.(interface{ object() *s3Holding })
	if !ok {
		t.Fatal("no S3 holding")
	}
	err := inner.object().call(bounded(t), func(ctx context.Context, c *s3.Client) error {
		_, err := c.PutObject(ctx, &s3.PutObjectInput{
			Bucket: &w.cfg.Bucket, Key: &inner.object().key,
			Body: bodyOf("other", 200<<10), Metadata: map[string]string{"op": "named"},
		})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for range 20 {
		saw, wrong, err := h.read(bounded(t), register)
		if err != nil || saw != "named" {
			t.Fatalf("read %q, %v", saw, err)
		}
		if wrong != "" {
			found++
		}
	}
	if found < 10 { // some reads are only of the metadata
		t.Errorf("%d of 20 reads saw that", found)
	}
}

// lostCommit ends the writer's session before COMMIT.
func lostCommit(t *testing.T, w *s3World) {
	outcomes := map[history.Outcome]int{}
	for i := range 12 {
		s, resource := w.surface(t, "publish", uint64(i)), w.resource(t)
		h := acquire(t, s, resource)
		pauses := 0
		err := h.write(bounded(t), to("torn", func(ctx context.Context) {
			if pauses++; pauses != 4 { // the pauses are in the body, before BEGIN, before and after the publication
				return
			}
			const end = `SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
				WHERE usename = 'client' AND state = 'idle in transaction' AND query LIKE '%publish%'`
			if _, err := w.admin.Exec(ctx, end); err != nil {
				t.Error(err)
			}
		}))
		outcome, code := outcomeOf(err)
		if outcome == history.Refused {
			t.Errorf("choice %d: %s: %v", i, code, err)
		}
		w.agree(t, s, resource, "torn", outcome)
		outcomes[outcome]++
	}
	if len(outcomes) != 3 { // the three: not looked up; found not committed; run again
		t.Errorf("the outcomes are %v", outcomes)
	}
}

func pythonKilled(t *testing.T, w *s3World) {
	s, resource := w.surface(t, "s3-boto3", 2), w.resource(t)
	h := acquire(t, s, resource)
	killed := false
	for i := range 20 {
		err := h.write(bounded(t), to(fmt.Sprintf("w%d", i), func(context.Context) {
			if b, ok := s.(*boto3Surface); ok && !killed {
				killed = true
				if err := b.python.process.cmd.Process.Kill(); err != nil {
					t.Error(err)
				}
				<-b.python.process.ended
			}
		}))
		if outcome, _ := outcomeOf(err); outcome == history.Done && killed {
			return
		}
	}
	t.Errorf("killed %v, and no write is done", killed)
}
