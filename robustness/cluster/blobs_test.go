package cluster_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"testing"

	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/fencegate/fencegate/client"
	"github.com/fencegate/fencegate/internal/leases"
	"github.com/fencegate/fencegate/robustness/cluster"
	"github.com/fencegate/fencegate/robustness/relay"
	"github.com/fencegate/fencegate/wire"
)

// upload writes an object through the first gateway, and reads it again.
func (w *world) upload(key string, size int) (err error) {
	api, err := client.New(client.Config{URL: "http://" + w.Gateways[0].API, Token: cluster.Token})
	must(w.t, err)
	lease, err := api.Acquire(w.t.Context(), client.AcquireRequest{Resource: "robust/r1-2", TTL: cluster.MaxTTL})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(w.t.Context())
	var renewing sync.WaitGroup
	renewing.Go(func() {
		for leases.Pause(ctx, cluster.MaxTTL/3); ctx.Err() == nil; leases.Pause(ctx, cluster.MaxTTL/3) {
			_, _ = api.Renew(ctx, lease.Handle, lease.TTL) // without it the upload is refused
		}
	})
	defer func() {
		cancel()
		renewing.Wait()
		err = errors.Join(err, api.Release(w.t.Context(), lease.Handle))
	}()
	creds, err := api.Credentials(ctx, wire.CredentialsRequest{Handle: lease.Handle})
	if err != nil {
		return err
	}
	objects := s3.New(s3.Options{
		Region: creds.Region, BaseEndpoint: &creds.EndpointURL, UsePathStyle: true,
		Credentials: credentials.NewStaticCredentialsProvider(creds.AccessKeyID, creds.SecretAccessKey, creds.SessionToken),
	})
	body := make([]byte, size)
	random := rand.New(rand.NewPCG(uint64(size), 1))
	for i := range body {
		body[i] = byte(random.Uint32())
	}
	bucket := "robust"
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

func TestBlobsOnAnS3ServiceAndItsFaults(t *testing.T) {
	t.Parallel()
	const disk = 48 << 20
	w := setup(t, cluster.Options{Gateways: 1, BlobS3: buildS3(t), Disk: disk})
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
	must(t, b.Restart(t.Context()))
	must(t, w.upload("r1-2/data", 1<<20))
	must(t, b.Freeze())
	must(t, b.Thaw())
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
		must(t, w.upload(fmt.Sprintf("r1-2/data%d", n), 8<<20))
	}
	if _, err := w.Failover(t.Context(), cluster.Failover{}); err != nil { // every age restarts
		t.Fatal(err)
	}
	was := w.values()
	must(t, w.Tidy(t.Context()))
	if got := w.values(); len(got) != len(was) {
		t.Errorf("the judge received %q", got[len(was):])
	}
	if !roomy() {
		t.Error("there is no room for another round")
	}
	must(t, w.upload("r1-2/data", 1<<20))
	sizes, err := w.Sizes(t.Context())
	must(t, err)
	if n, ok := sizes["blobs files"]; !ok || n > 20 || sizes[fmt.Sprintf("blobs#%d fds", b.Pid())] == 0 {
		t.Errorf("sizes: %v", sizes)
	}
}
