package blob

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"time"
)

// Probe checks that a store behaves as required: it writes a blob, reads it back at once, whole and in part, lists it,
// deletes it, and checks that it is gone at once. The error names the failed step and what it means.
func Probe(ctx context.Context, s Store) error {
	id, data := NewID(), make([]byte, 64<<10+1)
	_, _ = rand.Read(data)
	if err := s.Put(ctx, id, bytes.NewReader(data), int64(len(data))); err != nil {
		return fmt.Errorf("the blob store can't be written: %w", errors.Join(err, discard(ctx, s, id)))
	}
	err := probeRead(ctx, s, id, data)
	if err == nil {
		for _, listErr := range s.All(ctx) {
			if listErr != nil {
				err = fmt.Errorf("the blob store can't be listed: %w", listErr)
			}
			break // one entry is enough: there may be millions
		}
	}
	if deleteErr := discard(ctx, s, id); deleteErr != nil {
		return errors.Join(err, fmt.Errorf("the blob store can't delete: %w", deleteErr))
	}
	if err != nil {
		return err
	}
	switch r, err := s.Open(ctx, id, 0, 1); {
	case err == nil:
		_ = r.Close()
		return fmt.Errorf("the blob store still finds blob %s after it was deleted; strong consistency is needed: is there a cache, or a versioned bucket?", id)
	case !errors.Is(err, ErrNotFound):
		return fmt.Errorf("the blob store does not report a deleted blob as missing: %w", err)
	}
	return nil
}

func probeRead(ctx context.Context, s Store, id ID, data []byte) error {
	switch size, err := s.Size(ctx, id); {
	case errors.Is(err, ErrNotFound):
		return fmt.Errorf("the blob store does not find what was just written; strong consistency is needed: %w", err)
	case err != nil:
		return fmt.Errorf("the blob store does not report a blob's size: %w", err)
	case size != int64(len(data)):
		return fmt.Errorf("the blob store reports that blob %s has %d bytes; %d were written", id, size, len(data))
	}
	for _, offset := range []int{0, len(data) / 2} {
		r, err := s.Open(ctx, id, int64(offset), int64(len(data)-offset))
		var got []byte
		if err == nil {
			got, err = io.ReadAll(r)
			err = errors.Join(err, r.Close())
		}
		if err != nil {
			return fmt.Errorf("the blob store can't read what was just written: %w", err)
		}
		if !bytes.Equal(got, data[offset:]) {
			return fmt.Errorf("the blob store reads other bytes than were written: blob %s from %d", id, offset)
		}
	}
	return nil
}

// discard deletes a blob, even after the context has ended.
func discard(ctx context.Context, s Store, id ID) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	return s.Delete(ctx, id)
}
