package s3

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencegate/fencegate/gateway/blob"
	"github.com/fencegate/fencegate/gateway/objects"
)

// A copy goes on for a while after the last client has left, whenever others left before.
func TestACopyIsGivenUpAWhileAfterItsLastClientLeft(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newCopies(&slots{limit: 1}, time.Minute, time.Second)
		defer c.stop(time.Second)
		client := func() *copyRun {
			run, err := c.join(copyAttempt{invocation: "the copy"}, objects.Stored{}, func(reading context.Context, _ blob.ID) copyResult {
				<-reading.Done()
				return copyResult{err: errGivenUp}
			})
			if err != nil {
				t.Fatal(err)
			}
			return run
		}
		run := client()
		c.leave(run)
		<-time.After(50 * time.Second)
		if client() != run {
			t.Fatal("the second client began another copy")
		}
		left := time.Now()
		c.leave(run)
		<-run.done
		if after := time.Since(left); after != time.Minute {
			t.Errorf("given up %v after its last client left", after)
		}
	})
}
