package maintenance

import (
	"encoding/base64"
	"fmt"
	"hash"
	"strconv"

	"github.com/fencegate/fencegate/gateway/objects"
)

// resummed recomputes a version's recorded checksum from the bytes that are read: from all of them, or from the parts'
// checksums, where each part is a blob. If none was recorded it does nothing.
type resummed struct {
	algorithm, recorded string

	all   hash.Hash // nil: none was recorded, or the algorithm is unknown here
	part  hash.Hash // nil: all hashes the bytes themselves
	parts int
}

func resum(algorithm, recorded string) *resummed {
	r := &resummed{algorithm: algorithm, recorded: recorded}
	if recorded == "" {
		return r
	}
	r.all = objects.ChecksumHash(algorithm)
	if objects.IsComposite(recorded) {
		r.part = objects.ChecksumHash(algorithm)
	}
	return r
}

// Write implements [io.Writer]. It does not fail.
func (r *resummed) Write(p []byte) (int, error) {
	switch {
	case r.part != nil:
		return r.part.Write(p)
	case r.all != nil:
		return r.all.Write(p)
	}
	return len(p), nil
}

// blobEnds is called at the end of each blob.
func (r *resummed) blobEnds() {
	if r.part != nil {
		r.all.Write(r.part.Sum(nil))
		r.part.Reset()
		r.parts++
	}
}

// differs returns an error if the checksum is not the recorded one.
func (r *resummed) differs() error {
	if r.all == nil {
		return nil
	}
	got := base64.StdEncoding.EncodeToString(r.all.Sum(nil))
	if r.part != nil {
		got += "-" + strconv.Itoa(r.parts)
	}
	if got != r.recorded {
		return fmt.Errorf("the stored bytes have the %s %s, but %s is recorded", r.algorithm, got, r.recorded)
	}
	return nil
}
