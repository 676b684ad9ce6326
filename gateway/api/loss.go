package api

import (
	"context"
	"time"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/leasing"
)

// lossError reports that a lease is over, with the reason that the fence records.
type lossError struct {
	why      string
	recorded fence.Token // 0: the fence was not raised
}

func (e *lossError) Error() string { return leasing.ErrLost.Error() + ": " + e.why }
func (e *lossError) Unwrap() error { return leasing.ErrLost }

// lossTimeout bounds the query for the fence of a lease that is over.
const lossTimeout = time.Second

// lossOf adds the reason to err, which reports that a lease is over, if the fence answers.
func (s *Server) lossOf(ctx context.Context, h handle, err error) error {
	ctx, cancel := context.WithTimeout(ctx, lossTimeout)
	defer cancel()
	record, unknown := s.cfg.Fences.Inspect(ctx, h.Resource)
	switch {
	case unknown != nil || record.Token < h.Token:
		return err
	case record.Token > h.Token && record.Revoked():
		return &lossError{"its resource was revoked", record.Token}
	case record.Token > h.Token:
		return &lossError{"another has acquired the resource since", record.Token}
	case record.EndedAt != nil:
		return &lossError{why: "it was released, or ran out"}
	}
	return &lossError{why: "it ran out"}
}
