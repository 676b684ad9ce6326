package cluster_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/fencegate/fencegate/robustness/cluster"
	"github.com/fencegate/fencegate/robustness/relay"
)

// upload writes an object through the first gateway, and reads it again.
func (w *world) upload(key string, size int) error {
	dir := w.t.TempDir()
	from, to := filepath.Join(dir, "from"), filepath.Join(dir, "to")
	body := make([]byte, size)
	random := rand.New(rand.NewPCG(uint64(size), 1))
	for i := range body {
		body[i] = byte(random.Uint32())
	}
	must(w.t, os.WriteFile(from, body, 0o600))
	api := "http://" + w.Gateways[0].API
	for _, names := range [][]string{{from, "s3://robust/" + key}, {"s3://robust/" + key, to}} {
		_, err := w.Tool(w.t.Context(), "objects", "cp", names[0], names[1], "--gateway", api, "--resource", "robust/r1-2", "--ttl", "3s")
		if err != nil {
			return err
		}
	}
	read, err := os.ReadFile(to)
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
		t.Errorf("the judge was told of %q", got[len(was):])
	}
	if !roomy() {
		t.Error("there is no room for another round")
	}
	must(t, w.upload("r1-2/data", 1<<20))
	sizes, err := w.Sizes(t.Context())
	must(t, err)
	if n, told := sizes["blobs files"]; !told || n > 20 || sizes[fmt.Sprintf("blobs#%d fds", b.Pid())] == 0 {
		t.Errorf("sizes: %v", sizes)
	}
}
