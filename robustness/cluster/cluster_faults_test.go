package cluster_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/jackc/pgx/v5"
	"github.com/redis/go-redis/v9"

	"github.com/fencegate/fencegate/robustness/client"
	"github.com/fencegate/fencegate/robustness/cluster"
	"github.com/fencegate/fencegate/robustness/relay"
	"github.com/fencegate/fencegate/wire"
)

func TestAClusterAndItsFaults(t *testing.T) {
	t.Parallel()
	w := setup(t, cluster.Options{}, false)
	for _, part := range []struct {
		name string
		run  func(*testing.T, *world)
	}{
		{"relays", relays},
		{"redis", redisFaults},
		{"gateways", gatewayFaults},
		{"disk", diskFull},
		{"clients", clientFaults},
		{"postgresql", postgresFaults},
		{"failover", failover},
		{"and back, after a freeze and in order", failoverBack},
		{"a failover that failed on its way", failoverFailed},
		{"sizes", sizes},
	} {
		part.run(t, w)
		if t.Failed() {
			t.Fatalf("in the part: %s", part.name)
		}
		must(t, w.Heal(t.Context()))
		w.works(part.name)
	}
	if faults, err := w.Faulty(); err != nil || len(faults) > 0 {
		t.Errorf("faulty: %q, %v", faults, err)
	}
}

func relays(t *testing.T, w *world) {
	for _, from := range []string{"client-1", "gateway-1"} {
		if n := len(w.Net.Find(from, "redis-")); n != 3 {
			t.Errorf("%s has %d ways to the nodes", from, n)
		}
	}
	way := w.Net.Find("client-1", "gateway-1/api")[0]
	way.CutAfter(100) // the client repeats some
	if _, err := w.acquire(0, second); err == nil {
		t.Error("the answer arrived although it was cut")
	}
	way.Heal()
	before, had := way.Carried(relay.Requests), w.values()
	w.works("through a relay")
	if way.Carried(relay.Requests) == before {
		t.Error("nothing went through the relay")
	}
	if got, want := w.values()[len(had):], []string{"through a relay 0", "through a relay 1"}; !slices.Equal(got, want) {
		t.Errorf("effects %q; want %q", got, want)
	}
}

func redisFaults(t *testing.T, w *world) {
	n := w.Nodes[0] // it has appendfsync always
	direct := redis.NewClient(&redis.Options{Addr: n.Addr, MaxRetries: -1, ReadTimeout: time.Second})
	defer direct.Close()
	ctx := t.Context()
	get := func(key string) string { return direct.Get(ctx, key).Val() }
	must(t, direct.Set(ctx, "kept", "1", 0).Err())
	must(t, n.Keep())
	must(t, direct.Set(ctx, "later", "1", 0).Err())
	must(t, n.Kill())
	if direct.Ping(ctx).Err() == nil {
		t.Error("a killed node answers")
	}
	for _, c := range []struct {
		data cluster.Data
		want string
	}{{cluster.Own, "11"}, {cluster.Older, "1"}, {cluster.Empty, ""}} {
		must(t, n.Restart(ctx, c.data))
		if got := get("kept") + get("later"); got != c.want {
			t.Errorf("data %d: got %q, want %q", c.data, got, c.want)
		}
	}
	must(t, n.Freeze())
	if direct.Ping(ctx).Err() == nil {
		t.Error("a frozen node answers")
	}
	must(t, n.Thaw())
	must(t, n.SetClock(time.Hour))
	if now := direct.Time(ctx).Val(); time.Until(now) < 59*time.Minute {
		t.Errorf("its time is %v", now)
	}
	w.endsByItself(w.Nodes[1].Pid())
	must(t, w.Nodes[1].Flush(ctx, cluster.Hash))
	must(t, w.Nodes[1].Flush(ctx, cluster.Scripts))
	must(t, w.Nodes[2].Flush(ctx, cluster.Everything))
	must(t, w.Nodes[2].Kill()) // Heal starts it
}

func gatewayFaults(t *testing.T, w *world) {
	g := w.Gateways[0]
	starts := g.Starts()
	must(t, g.Kill())
	w.eventually("it is started again", g.Ready)
	must(t, g.Stop(t.Context()))
	w.eventually("it is started again", g.Ready)
	if got := g.Starts() - starts; got != 2 {
		t.Errorf("started %d times", got)
	}
	must(t, g.Freeze())
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if g.Ready(ctx) == nil {
		t.Error("a frozen gateway answers")
	}
	must(t, g.Thaw())
	w.eventually("it goes on", g.Ready)
	w.endsByItself(g.Pid())
	w.eventually("it is started again", g.Ready)
	must(t, g.SetClock(-time.Hour))
	must(t, w.Spin(t.Context(), 1, 100*time.Millisecond))
	must(t, g.Freeze()) // Heal resumes it
}

// endsByItself ends a process without the cluster's knowledge, which finds that once, although Heal starts it again.
func (w *world) endsByItself(pid int) {
	w.t.Helper()
	must(w.t, syscall.Kill(pid, syscall.SIGKILL))
	w.eventually("the end is found", func(ctx context.Context) error {
		must(w.t, w.Heal(ctx))
		ends, err := w.Faulty()
		must(w.t, err)
		if len(ends) == 0 {
			return errors.New("nothing is found")
		}
		if len(ends) > 1 || !strings.Contains(ends[0], "ended by itself") {
			w.t.Errorf("found %q", ends)
		}
		return nil
	})
	if ends, err := w.Faulty(); err != nil || len(ends) > 0 {
		w.t.Errorf("found again: %q, %v", ends, err)
	}
}

func diskFull(t *testing.T, w *world) {
	if w.Disk == nil {
		t.Log("the blobs have no file system of their own here")
		return
	}
	must(t, w.Disk.Fill(t.Context(), 0))
	path := filepath.Join(w.Disk.Path, "more")
	if err := os.WriteFile(path, make([]byte, 1<<16), 0o600); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("the disk is not full: %v", err)
	}
	must(t, w.Disk.Free())
	must(t, os.WriteFile(path, make([]byte, 1<<16), 0o600))
	must(t, os.Remove(path))
}

func clientFaults(t *testing.T, w *world) {
	k, err := w.StartClient(t.Context(), w.cfg)
	must(t, err)
	order := func(do string, patience time.Duration) error {
		report, err := k.Order(t.Context(), client.Order{Do: do}, patience)
		if err == nil && report.Done != do {
			err = fmt.Errorf("to %q it answers %q", do, report.Done)
		}
		return err
	}
	must(t, k.SetClock(2*time.Hour))
	must(t, order(client.Work, 10*time.Second))
	text, err := os.ReadFile(k.Histories()[0])
	must(t, err)
	var do string
	var at int64
	_, err = fmt.Sscan(string(text), &do, &at)
	must(t, err)
	if do != client.Work || time.Until(time.Unix(at, 0)) < time.Hour {
		t.Errorf("the history says %q", text)
	}
	must(t, k.Freeze())
	if err := order(client.Rest, 100*time.Millisecond); err == nil {
		t.Error("a frozen client answers")
	}
	must(t, k.Thaw())
	must(t, order(client.Work, 10*time.Second)) // a late answer is not taken for this one
	must(t, k.Kill())
	if k.Alive() || order(client.Rest, time.Second) == nil {
		t.Error("a killed client answers")
	}
	must(t, k.Restart(t.Context(), client.Order{Do: client.Work}))
	must(t, order(client.Rest, 10*time.Second))
	if len(k.Histories()) != 2 || !k.Alive() {
		t.Errorf("histories %q", k.Histories())
	}
}

func postgresFaults(t *testing.T, w *world) {
	p := w.Primary()
	must(t, p.Freeze())
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if conn, err := pgx.Connect(ctx, p.URL()); err == nil {
		t.Error("a frozen server answers")
		_ = conn.Close(ctx)
	}
	must(t, p.Thaw())
	before := w.works("after a freeze")
	must(t, p.Kill())
	if _, err := p.Connect(t.Context()); err == nil {
		t.Error("a killed server answers")
	}
	must(t, p.Start(t.Context()))
	if after := w.works("after a crash"); after.Token <= before.Token {
		t.Errorf("token %d after %d", after.Token, before.Token)
	}
	w.endsByItself(w.Standby().Pid())
	// A commit waits for the standby, and is not acknowledged without it.
	must(t, w.Standby().Freeze())
	l, err := w.acquire(0, second)
	if err == nil {
		err = w.write(l, "without a standby")
	}
	if err == nil {
		t.Error("a commit did not wait for the standby")
	}
	must(t, w.Standby().Thaw())
	must(t, p.Kill()) // Heal restarts it
}

func failover(t *testing.T, w *world) {
	old := w.Primary()
	w.works("before the failover")
	had := w.values()
	s, err := w.Failover(t.Context(), cluster.Failover{OldUptime: 500 * time.Millisecond})
	must(t, err)
	if w.Primary() == old || s.Primary != w.Primary().Name || s.Timeline < 2 || !strings.Contains(s.LSN, "/") || len(s.Effects) > 0 {
		t.Errorf("the switch: %+v", s)
	}
	if got := w.values(); len(got) < len(had) || !slices.Equal(got[:len(had)], had) {
		t.Errorf("effects were lost: %q had been %q", got, had)
	}
}

func failoverBack(t *testing.T, w *world) {
	must(t, w.Primary().Freeze())
	_, err := w.Failover(t.Context(), cluster.Failover{})
	must(t, err)
	w.works("back")
	_, err = w.Failover(t.Context(), cluster.Failover{InOrder: true})
	must(t, err)
}

// Heal completes a failover that could not start the new standby, because its port was taken.
func failoverFailed(t *testing.T, w *world) {
	old := w.Primary()
	taken := make(chan net.Listener, 1)
	go func() {
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		for range tick.C {
			if l, err := net.Listen("tcp", old.Addr); err == nil {
				taken <- l
				return
			}
		}
	}()
	if _, err := w.Failover(t.Context(), cluster.Failover{}); err == nil {
		t.Error("there is a new standby")
	}
	must(t, (<-taken).Close())
	if _, err := w.Failover(t.Context(), cluster.Failover{}); !errors.Is(err, cluster.ErrNoStandby) {
		t.Errorf("without a standby: %v", err)
	}
	must(t, w.Heal(t.Context()))
	if w.Standby() != old {
		t.Error("the old primary is no standby")
	}
	must(t, w.CaughtUp(t.Context()))
}

func sizes(t *testing.T, w *world) {
	got, err := w.Sizes(t.Context())
	must(t, err)
	for _, name := range []string{
		fmt.Sprintf("gateway-1#%d goroutines", w.Gateways[0].Starts()), fmt.Sprintf("gateway-2#%d kB", w.Gateways[1].Starts()),
		"redis-1 keys", "postgres sessions",
	} {
		if got[name] <= 0 {
			t.Errorf("%s: %v in %v", name, got[name], got)
		}
	}
}

// The failover reports exactly what the standby had not received. There is one Redis node.
func TestAnAsynchronousFailoverNamesWhatIsLost(t *testing.T) {
	t.Parallel()
	w := setup(t, cluster.Options{Async: true, Redis: 1}, false)
	if _, err := w.Failover(t.Context(), cluster.Failover{OldUptime: time.Second}); err == nil {
		t.Fatal("an old primary that acknowledges came back")
	}
	w.works("kept")
	must(t, w.CaughtUp(t.Context()))
	w.Net.Find(w.Standby().Name, w.Primary().Name)[0].Hold(relay.Replies, true)
	lost := w.works("lost")
	s, err := w.Failover(t.Context(), cluster.Failover{})
	must(t, err)
	var values []string
	for _, e := range s.Effects {
		values = append(values, e.Value)
	}
	if want := []string{"lost 0", "lost 1"}; !slices.Equal(values, want) {
		t.Errorf("lost %q; want %q", values, want)
	}
	if len(s.Fences) != 1 || s.Fences[0].Resource != first || s.Fences[0].Was != int64(lost.Token) {
		t.Errorf("fences fell: %+v", s.Fences)
	}
	if got, want := w.values(), []string{"kept 0", "kept 1"}; !slices.Equal(got, want) {
		t.Errorf("effects %q; want %q", got, want)
	}
	must(t, w.Nodes[0].Restart(t.Context(), cluster.Empty))
	must(t, w.Heal(t.Context()))
	if err := w.write(lost, "stale"); err == nil {
		t.Error("a grant of before the failover writes")
	}
	w.works("afterwards")
}

// The leases are PostgreSQL's, and the blobs on an S3 service.
func TestBlobsOnAnS3ServiceAndItsFaults(t *testing.T) {
	t.Parallel()
	const disk = 24 << 20
	w := setup(t, cluster.Options{Gateways: 1, PostgresLeases: true, Disk: disk}, true)
	b := w.Blobs
	way := w.Net.Find("gateway-1", "blobs")[0]
	before := way.Carried(relay.Requests)
	must(t, w.upload("r1-2/data", 1<<20))
	if sent := way.Carried(relay.Requests) - before; sent < 1<<20 {
		t.Errorf("%d bytes went through the relay to the service", sent)
	}
	must(t, b.Kill())
	if conn, err := net.Dial("tcp", b.Addr); err == nil {
		t.Error("a killed service answers")
		_ = conn.Close()
	}
	must(t, b.Start(t.Context()))
	must(t, b.Freeze())
	must(t, b.Thaw())
	must(t, w.upload("r1-2/data", 1<<20))
	must(t, b.Kill())
	must(t, w.Heal(t.Context()))
	must(t, w.upload("r1-2/data", 1<<20))
	if w.Disk == nil {
		return
	}
	roomy := func() bool {
		left, err := w.Disk.Left()
		must(t, err)
		return left >= disk*2/3
	}
	for n := 0; roomy(); n++ { // all of them are current
		must(t, w.upload(fmt.Sprintf("r1-2/data%d", n), 2<<20))
	}
	if _, err := w.Failover(t.Context(), cluster.Failover{}); err != nil { // every age restarts
		t.Fatal(err)
	}
	was := w.values()
	must(t, w.Tidy(t.Context()))
	if got := w.values(); len(got) != len(was) || !roomy() {
		t.Errorf("the judge received %q; room for another round: %v", got[len(was):], roomy())
	}
	must(t, w.upload("r1-2/data", 1<<20))
	sizes, err := w.Sizes(t.Context())
	must(t, err)
	if n, ok := sizes["blobs files"]; !ok || n > 20 || sizes[fmt.Sprintf("blobs#%d fds", b.Pid())] == 0 {
		t.Errorf("sizes: %v", sizes)
	}
}

// upload writes an object through the first gateway, and reads it again.
func (w *world) upload(key string, size int) (err error) {
	lease, err := w.acquire(0, second)
	if err != nil {
		return err
	}
	ctx := w.t.Context()
	defer func() { err = errors.Join(err, w.apis[0].Release(ctx, lease.Handle)) }()
	creds, err := w.apis[0].Credentials(ctx, wire.CredentialsRequest{Handle: lease.Handle})
	if err != nil {
		return err
	}
	objects := s3.New(s3.Options{
		Region: creds.Region, BaseEndpoint: &creds.EndpointURL, UsePathStyle: true,
		Credentials: credentials.NewStaticCredentialsProvider(creds.AccessKeyID, creds.SecretAccessKey, creds.SessionToken),
	})
	body := make([]byte, size)
	_, _ = rand.Read(body)
	bucket := cluster.Bucket
	if _, err := objects.PutObject(ctx, &s3.PutObjectInput{Bucket: &bucket, Key: &key, Body: bytes.NewReader(body)}); err != nil {
		return err
	}
	out, err := objects.GetObject(ctx, &s3.GetObjectInput{Bucket: &bucket, Key: &key})
	if err != nil {
		return err
	}
	defer out.Body.Close()
	read, err := io.ReadAll(out.Body)
	if err == nil && !bytes.Equal(read, body) {
		err = fmt.Errorf("%d bytes are other ones", len(read))
	}
	return err
}
