package api

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/fencegate/fencegate/client/wire"
	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/gateway/access"
)

// maxResources is how many leases one request may ask for.
const maxResources = 100

// acquireAll acquires several leases, all or none.
func (s *Server) acquireAll(c echo.Context) error {
	began := time.Now()
	var body wire.AcquireAllRequest
	if err := decode(c, &body); err != nil {
		return err
	}
	requests, wait, err := s.acquisitions(body)
	if err != nil {
		return err
	}
	may := func() error {
		for _, r := range requests {
			if err := check(c, access.Acquire, r.Resource); err != nil {
				return err
			}
		}
		return nil
	}
	if err := may(); err != nil {
		return err
	}
	once, err := s.once(c, requests)
	if err != nil {
		return err
	}
	all, err := s.await(c.Request().Context(), wait, may, func(ctx context.Context, wait time.Duration) ([]leasing.Lease, error) {
		return once.acquire(ctx, wait, func(ctx context.Context, wait time.Duration) ([]leasing.Lease, error) {
			all, err := s.take(ctx, requests, wait)
			return all, leaseError(ctx, "", err)
		})
	})
	if err != nil {
		return once.failed(err)
	}
	return s.grant(c, all, once, func() any {
		answer := wire.Leases{Leases: make([]wire.Lease, len(all))}
		for i, lease := range all {
			answer.Leases[i] = s.told(c, lease, requests[i].TTL, began, once.sinceOf(i))
		}
		return answer
	})
}

func (s *Server) acquisitions(body wire.AcquireAllRequest) (all []leasing.Request, wait time.Duration, err error) {
	names := slices.Sorted(slices.Values(body.Resources))
	switch n := len(names); {
	case n == 0:
		return nil, 0, &fence.InvalidError{Field: "resources", Reason: "are empty"}
	case n > maxResources:
		return nil, 0, &fence.InvalidError{Field: "resources", Reason: fmt.Sprintf("are %d; at most %d are allowed", n, maxResources)}
	case len(slices.Compact(names)) < n:
		return nil, 0, &fence.InvalidError{Field: "resources", Reason: "name one resource twice"}
	}
	all = make([]leasing.Request, len(body.Resources))
	for i, resource := range body.Resources {
		if all[i], wait, err = s.acquisition(resource, body.Holder, body.TTL, body.Wait); err != nil {
			return nil, 0, err
		}
	}
	return all, wait, nil
}
