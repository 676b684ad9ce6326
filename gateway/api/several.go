package api

import (
	"fmt"
	"slices"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/wire"
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
	requests, wait, err := s.requestsOf(body)
	if err != nil {
		return err
	}
	return s.grant(c, began, requests, wait, func(all []wire.Lease) any { return wire.Leases{Leases: all} })
}

func (s *Server) requestsOf(body wire.AcquireAllRequest) (all []leasing.Request, wait time.Duration, err error) {
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
		if all[i], wait, err = s.requestOf(resource, body.Holder, body.TTL, body.Wait); err != nil {
			return nil, 0, err
		}
	}
	return all, wait, nil
}
