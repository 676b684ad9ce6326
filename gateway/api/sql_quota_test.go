package api_test

import (
	"context"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/gateway/access"
	"github.com/fencegate/fencegate/gateway/api"
	"github.com/fencegate/fencegate/wire"
)

// busy runs SQL until it is released.
type busy struct {
	mu      sync.Mutex
	running int
	letGo   chan struct{}
}

func (b *busy) Run(context.Context, fence.Grant, []wire.Statement) ([]wire.Result, error) {
	b.mu.Lock()
	b.running++
	b.mu.Unlock()
	<-b.letGo
	return nil, nil
}

func TestOnePrincipalDoesNotTakeAllPlacesOfSQL(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		all := []access.Definition{}
		for _, name := range []string{"greedy", "modest"} {
			all = append(all, access.Definition{Name: name, Tokens: []access.Digest{access.DigestOf(name)}, Rules: []access.Rule{{Resources: "*", Verbs: []access.Verb{access.SQL}}}})
		}
		principals, err := access.New(all)
		if err != nil {
			t.Fatal(err)
		}
		sql := &busy{letGo: make(chan struct{})}
		s := newServer(t, newFakes(), func(c *api.Config) { c.Principals, c.SQL, c.SQLPerPrincipal = principals, sql, 2 })
		var asked sync.WaitGroup
		answers := make(chan int, 5)
		ask := func(of string) {
			asked.Go(func() {
				answers <- request(t, s, "POST", "/v1/sql", `{"statements":[{"sql":"SELECT 1"}]}`,
					"Authorization", "Bearer "+of, fence.HeaderResource, mine, fence.HeaderToken, "34."+seal.Reveal()).status
			})
		}
		for range 4 {
			ask("greedy")
		}
		synctest.Wait()
		if sql.running != 2 {
			t.Errorf("%d requests of one principal run; want 2", sql.running)
		}
		ask("modest")
		synctest.Wait()
		if sql.running != 3 {
			t.Errorf("%d requests run; another principal's waits", sql.running)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if len(answers) != 2 {
			t.Fatalf("%d are answered after a minute without a place", len(answers))
		}
		for range 2 {
			if got := <-answers; got != http.StatusServiceUnavailable {
				t.Errorf("after a minute without a place: answered %d", got)
			}
		}
		if sql.running != 3 {
			t.Errorf("%d requests run", sql.running)
		}
		ask("greedy")
		close(sql.letGo)
		asked.Wait()
		for range 4 {
			if got := <-answers; got != http.StatusOK {
				t.Errorf("answered %d", got)
			}
		}
	})
}
