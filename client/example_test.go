package client_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/fencegate/fencegate/client"
	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/wire"
)

// standIn answers as a gateway does that grants orders/1001 only.
func standIn() *httptest.Server {
	return httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var asked wire.AcquireRequest
		if r.URL.Path != "/v1/leases" {
			w.WriteHeader(http.StatusNoContent)
			return
		}
		_ = json.NewDecoder(r.Body).Decode(&asked)
		if asked.Resource != "orders/1001" {
			w.WriteHeader(http.StatusConflict)
			_ = json.NewEncoder(w).Encode(wire.Problem{Code: wire.CodeHeld, Detail: `"orders/7" is held by "worker-b"`, Holder: "worker-b"})
			return
		}
		w.WriteHeader(http.StatusCreated)
		_ = json.NewEncoder(w).Encode(wire.Lease{
			Resource: asked.Resource, Token: 34, Grant: fence.Grant{Resource: asked.Resource, Token: 34, Seal: fence.NewSeal()}.Presented(),
			Handle: "handle", TTLMS: 30_000, Timing: wire.Timing{ElapsedMS: 1, ValidMS: 29_000},
		})
	}))
}

func Example() {
	gateway := standIn()
	defer gateway.Close()
	ctx := context.Background()

	c, err := client.New(client.Config{URL: gateway.URL})
	if err != nil {
		fmt.Println(err)
		return
	}
	lease, err := c.Acquire(ctx, client.AcquireRequest{Resource: "orders/1001", TTL: 30 * time.Second, Holder: "worker-a"})
	if err != nil {
		fmt.Println(err)
		return
	}
	grant, err := lease.Grant()
	fmt.Println(grant.Resource, grant.Token, lease.Deadline.Left() > 0, err)
	fmt.Println("released:", c.Release(ctx, lease.Handle) == nil)

	_, err = c.Acquire(ctx, client.AcquireRequest{Resource: "orders/7", TTL: 30 * time.Second})
	var problem *client.Problem
	if errors.As(err, &problem) && problem.Code == wire.CodeHeld {
		fmt.Println("held by", problem.Holder)
	}
	// Output:
	// orders/1001 34 true <nil>
	// released: true
	// held by worker-b
}
