package api

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/gateway/access"
	"github.com/fencegate/fencegate/wire"
)

// places bounds how many requests of one principal run SQL at once, so that none takes all connections. It is safe for
// concurrent use.
type places struct {
	each int // 0: no limit

	mu sync.Mutex
	of map[string]chan struct{} // one per principal that has asked
}

// placeTimeout bounds the wait for a place.
const placeTimeout = time.Minute

// take waits for a place for the caller. The error is ctx's or a [*leasing.UnavailableError].
func (p *places) take(ctx context.Context) (leave func(), err error) {
	if p.each == 0 {
		return func() {}, nil
	}
	name := access.Of(ctx).Name()
	p.mu.Lock()
	if p.of == nil {
		p.of = map[string]chan struct{}{}
	}
	own := p.of[name]
	if own == nil {
		own = make(chan struct{}, p.each)
		p.of[name] = own
	}
	p.mu.Unlock()
	over := time.NewTimer(placeTimeout)
	defer over.Stop()
	select {
	case own <- struct{}{}:
		return func() { <-own }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-over.C:
		return nil, &leasing.UnavailableError{Part: wire.PartGateway, Cause: fmt.Errorf("%d SQL requests of %s are running, its limit, and none ended within %v", p.each, name, placeTimeout)}
	}
}

// run runs SQL in one of the caller's places.
func (s *Server) run(ctx context.Context, grant fence.Grant, statements []wire.Statement) ([]wire.Result, error) {
	leave, err := s.places.take(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	return s.cfg.SQL.Run(ctx, grant, statements)
}
