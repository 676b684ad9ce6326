// Package blob stores immutable byte strings under ids of their own.
//
// The guarantee: when Put returns nil, the blob is complete and survives a crash; a reader that knows its size never
// reads a truncated blob. A blob is never changed. Names, overwriting and fencing are outside this package: a pointer
// in PostgreSQL says which blob belongs to an object's name.
//
//	store, err := blob.OpenDir("/var/lib/fencegate/blobs")
//	if err != nil {
//		return err
//	}
//	id := blob.NewID()
//	if err := store.Put(ctx, id, body, size); err != nil {
//		return err // nothing readable is there, but Delete it: leftovers may be
//	}
//	r, err := store.Open(ctx, id, 0, size) // errors.Is(err, blob.ErrNotFound)
//
// Package blobtest holds the suite that every implementation passes.
package blob

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"iter"
	"time"
)

var (
	// ErrNotFound reports that the store holds no blob with this id.
	ErrNotFound = errors.New("blob not found")
	// ErrSize reports that the reader gave fewer or more bytes than announced, or that the requested range lies outside
	// the blob.
	ErrSize = errors.New("blob has another size")
	// ErrID reports that a text is not an id.
	ErrID = errors.New("malformed blob id")
)

// Store keeps blobs. It is safe for concurrent use.
//
// A Store wraps errors from below it (a full disk, a refused connection) and names the id.
type Store interface {
	// Put stores the first size bytes of r under id. It may or may not read further to find r's end. A caller that
	// needs the end to be read, for example to compare a digest, reads it itself before it relies on the blob. The id
	// must be new: each attempt of an upload has its own. A nil error means complete and durable. After an error the
	// blob must not be used: Open does not find it, or, if only a service's answer was lost, finds all of it, now or
	// later. The store may also hold leftovers. Delete removes both. A reader with too few bytes is ErrSize, one with
	// too many may be; the reader's own error is passed on.
	Put(ctx context.Context, id ID, r io.Reader, size int64) error

	// Open reads length bytes from offset. The error is ErrNotFound if there is no such blob, ErrSize if the range lies
	// outside it. A blob that is deleted while it is read stays readable, or the reader fails; it never ends early
	// without an error. The context bounds Open, not the reader.
	Open(ctx context.Context, id ID, offset, length int64) (io.ReadCloser, error)

	// Size returns the blob's size in bytes, or ErrNotFound.
	Size(ctx context.Context, id ID) (int64, error)

	// Delete removes the blob and what an unfinished Put of it left. Deleting a missing blob succeeds, so Delete can be
	// repeated.
	Delete(ctx context.Context, id ID) error

	// All lists the complete blobs in no particular order, without buffering them. Blobs that are added or deleted
	// during the listing may be missing. An error ends the list.
	All(ctx context.Context) iter.Seq2[Info, error]

	// Owner returns the mark that SetOwner left, or "". It says to which database the blobs belong, so that no other
	// deletes them. All does not list it.
	Owner(ctx context.Context) (string, error)

	// SetOwner replaces the mark, at most 4 KiB, durably.
	SetOwner(ctx context.Context, mark string) error
}

// Reserver is a [Store] that makes places for blobs ahead of their bytes, many of
// them at little more than the cost of one.
//
// Until it is filled or deleted, a place may look like an empty or truncated blob to Size, Open and All. So a caller
// that reserves records all ids before, and relies only on blobs that Put or Fill has acknowledged.
type Reserver interface {
	Store

	// Reserve makes an empty place for each id, durably; ids of one call of [NewIDs] cost least. After an error some of
	// them may exist: Delete them.
	Reserve(ctx context.Context, ids []ID) error

	// Fill is Put for a reserved id; it works once. The error is ErrNotFound if the place is gone, ErrFilled if it has
	// bytes, which stay unchanged.
	Fill(ctx context.Context, id ID, r io.Reader, size int64) error
}

const (
	ownerName = "owner"
	maxOwner  = 4 << 10 // bytes
)

// Info describes a stored blob.
type Info struct {
	ID      ID
	Size    int64     // bytes
	Changed time.Time // by the store's clock
}

// ID names a blob with 128 bits: the first 48 are its creation time, so that ids made together are adjacent in an
// index; the rest is random.
type ID [16]byte

// NewID returns a new id.
func NewID() ID {
	var id ID
	_, _ = rand.Read(id[6:]) // never fails: crypto/rand ends the process when the system has no randomness
	var ms [8]byte
	binary.BigEndian.PutUint64(ms[:], uint64(time.Now().UnixMilli()))
	copy(id[:6], ms[2:])
	id[6] = id[6]&0x0f | 0x70 // RFC 9562, version 7
	id[8] = id[8]&0x3f | 0x80
	return id
}

// NewIDs returns ids that a [Dir] keeps in one folder; each call uses another folder.
func NewIDs(n int) []ID {
	ids := make([]ID, n)
	for i := range ids {
		ids[i] = NewID()
		ids[i][len(ID{})-1] = ids[0][len(ID{})-1]
	}
	return ids
}

// ParseID parses an id's text form: exactly 32 lower-case hexadecimal digits, so that an id cannot leave a store's
// folder. The error is ErrID.
func ParseID(s string) (ID, error) {
	var id ID
	if len(s) != hex.EncodedLen(len(id)) {
		return ID{}, fmt.Errorf("%w: %d characters", ErrID, len(s))
	}
	for i := range len(s) {
		if c := s[i]; (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return ID{}, fmt.Errorf("%w: not lower-case hexadecimal", ErrID)
		}
	}
	_, err := hex.Decode(id[:], []byte(s))
	return id, err
}

// String returns the id's text form.
func (id ID) String() string { return hex.EncodeToString(id[:]) }
