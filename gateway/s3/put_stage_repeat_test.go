//go:build unix

package s3_test

import (
	"net/http"
	"testing"

	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	"github.com/fencegate/fencegate/gateway/objects/maintenance"
)

func TestAStageWhoseAnswerIsLostIsRecordedOnceOrNotAtAll(t *testing.T) {
	t.Parallel()
	for name, lost := range map[string]struct {
		faults  []fault
		down    bool
		status  int
		stages  int
		pending int
	}{
		"the reply":   {faults: []fault{loseReply}, status: 200, stages: 1, pending: 1},
		"the request": {faults: []fault{loseRequest}, status: 200, stages: 1, pending: 1},
		// The sweep deletes them.
		"PostgreSQL with it": {faults: []fault{loseReply}, down: true, status: 503, stages: 1, pending: 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bothWays(t, func(t *testing.T, way option) {
				f := &faulty{}
				w := setup(t, throughFaulty(t, f), way)
				w.bucket()
				w.arm("orders/1001", 7)
				f.strike("stage_upload", lost.down, lost.faults...)
				res, text := w.send(raw{
					creds: w.issue("orders/1001", 7), method: "PUT", path: "/orders/" + invoice, body: body("x"), size: 1, header: map[string]string{"Fencing-Stage": "true"},
				})
				if res.StatusCode != lost.status || (res.Header.Get("Fencing-Stage") != "") != (lost.status == 200) || f.left() != 0 {
					t.Errorf("%d %v\n%s", res.StatusCode, res.Header, text)
				}
				f.setDown(false)
				if n := w.count("SELECT count(*) FROM objects.stages"); n != lost.stages {
					t.Errorf("%d stages, want %d", n, lost.stages)
				}
				if n := w.pending(); n != lost.pending {
					t.Errorf("%d pending blobs, want %d", n, lost.pending)
				}
			})
		})
	}
}

// The tests of repeated staging send this request: each attempt has the same id.
func (w *world) stageAgain() raw {
	return raw{
		creds: w.issue("orders/1001", 7), method: "PUT", path: "/orders/" + invoice, body: body("x"), size: 1, invocation: "a",
		header: map[string]string{"Fencing-Stage": "true"},
	}
}

func TestAStageWhoseOutcomeIsUnknownCanBePublished(t *testing.T) {
	t.Parallel()
	f := &faulty{}
	w := setup(t, throughFaulty(t, f))
	bucket := w.bucket()
	g := w.sealed("orders/1001", 7)
	f.strike("stage_upload", false, loseReply, loseReply, loseReply, loseReply, loseReply)
	if res, text := w.send(w.stageAgain()); res.StatusCode != http.StatusServiceUnavailable || f.left() != 0 {
		t.Fatalf("%d, %d faults left\n%s", res.StatusCode, f.left(), text)
	}
	res, text := w.send(w.stageAgain())
	if res.StatusCode != http.StatusOK {
		t.Fatalf("again: %d\n%s", res.StatusCode, text)
	}
	if err := w.publish(g, res.Header.Get("Fencing-Stage")); err != nil {
		t.Error(err)
	}
	if got := get(t, w.root(), bucket, invoice); got != "x" {
		t.Errorf("the object holds %q", got)
	}
}

func TestAStageThatWasGivenUpIsNotAnsweredAgain(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.bucket()
	g := w.sealed("orders/1001", 7)
	first, _ := w.send(w.stageAgain())
	w.age("25 hours")
	if _, err := w.srv.Keeper().Sweep(t.Context(), maintenance.Sweep{}); err != nil {
		t.Error(err)
	}
	again, text := w.send(w.stageAgain())
	stage := again.Header.Get("Fencing-Stage")
	if again.StatusCode != http.StatusOK || stage == first.Header.Get("Fencing-Stage") {
		t.Fatalf("%d, stage %s\n%s", again.StatusCode, stage, text)
	}
	if err := w.publish(g, stage); err != nil {
		t.Error(err)
	}
	third, _ := w.send(w.stageAgain())
	if got := third.Header.Get("Fencing-Stage"); got != stage {
		t.Errorf("the stage is %s once it is published, and was %s", got, stage)
	}
}

func TestARepeatedCompletionFindsNoStageThatWasGivenUp(t *testing.T) {
	t.Parallel()
	w := setup(t)
	bucket := w.bucket()
	g := w.sealed("orders/1001", 5)
	c := w.holder(g.Resource, g.Token, staging)
	m := begin(t, c, bucket, types.ChecksumAlgorithmCrc32)
	m.part(1, []byte("bbbb"))
	if _, err := m.complete(c, m.parts); err != nil {
		t.Fatal(err)
	}
	w.age("25 hours")
	w.sweep(maintenance.Swept{Condemned: 1, Deleted: 1}, maintenance.Sweep{})
	_, err := m.complete(c, m.parts)
	wantRefused(t, err, 404, "NoSuchUpload")
}
