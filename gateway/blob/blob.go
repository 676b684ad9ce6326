// Package blob stores immutable byte strings under ids of their own.
//
// The guarantee: when Put returns nil, the blob is complete and survives a
// crash; nobody who knows its size ever reads a part of one that was cut short. A blob is never
// changed. Names, overwriting and fencing are not this package's business: a
// pointer in PostgreSQL says which blob an object's name stands for.
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
	// ErrNotFound: the store holds no blob with this id.
	ErrNotFound = errors.New("blob not found")
	// ErrSize: the reader gave fewer or more bytes than the caller announced, or
	// the wanted range lies outside of the blob.
	ErrSize = errors.New("blob has another size")
	// ErrID: the text is not an id.
	ErrID = errors.New("malformed blob id")
)

// Store keeps blobs. It is safe for concurrent use.
//
// Errors that a Store passes on from below it (a full disk, a refused
// connection) are wrapped and name the id.
type Store interface {
	// Put stores the first size bytes of r under id. Whether it reads on to find
	// r's end is its own affair: a caller for whom something happens there, such as
	// the comparison of a digest, reads it itself before it relies on the blob. The
	// id must be new: each attempt to upload has its own. Returning nil means
	// complete and durable. After any error the blob is not to be used: Open does not
	// find it, or finds all of it where only the answer of a service was lost, now or
	// later; the store may hold leftovers, too. Delete removes both. A reader with
	// fewer bytes is ErrSize, one with more may be; the reader's own error is passed on.
	Put(ctx context.Context, id ID, r io.Reader, size int64) error

	// Open reads length bytes from offset, both in bytes. ErrNotFound where there
	// is no such blob, ErrSize where the range lies outside of it. A blob that is
	// deleted while it is read stays readable, or the reader fails; it never ends
	// early without an error. The context bounds Open, not the reader.
	Open(ctx context.Context, id ID, offset, length int64) (io.ReadCloser, error)

	// Size is the blob's size in bytes, or ErrNotFound.
	Size(ctx context.Context, id ID) (int64, error)

	// Delete removes the blob and what an unfinished Put of it left. Deleting what
	// is not there succeeds, so it can be repeated.
	Delete(ctx context.Context, id ID) error

	// All lists the complete blobs in no particular order, without holding them
	// in memory. Blobs that come or go meanwhile may be missing. An error ends it.
	All(ctx context.Context) iter.Seq2[Info, error]

	// Owner is the mark that SetOwner left, or "". It says whose blobs these are, so
	// that nobody deletes those of another. All does not list it.
	Owner(ctx context.Context) (string, error)

	// SetOwner replaces the mark, at most 4 KiB, durably.
	SetOwner(ctx context.Context, mark string) error
}

// Reserver is a [Store] that makes places for blobs ahead of their bytes, many of
// them at little more than the cost of one.
//
// A place may look like a blob that is empty or cut short: to Size, Open and All,
// until it is filled or deleted. So who reserves has noted all ids before, and
// relies on no blob but those that Put or Fill has acknowledged.
type Reserver interface {
	Store

	// Reserve makes an empty place for each id, durably; ids of one call of [NewIDs]
	// cost least. After an error any of them may be there: Delete them.
	Reserve(ctx context.Context, ids []ID) error

	// Fill is Put for an id that was reserved, once. ErrNotFound where its place is not
	// there any more, ErrFilled where it has bytes, which stay as they are.
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
	Changed time.Time // by the store's own clock
}

// ID names a blob: 128 bits, of which the first 48 are the time of its making,
// so that ids made together lie together in an index, and the rest is random.
type ID [16]byte

// NewID makes an id.
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

// NewIDs makes ids that a [Dir] keeps in one folder, which is another one with
// each call.
func NewIDs(n int) []ID {
	ids := make([]ID, n)
	for i := range ids {
		ids[i] = NewID()
		ids[i][len(ID{})-1] = ids[0][len(ID{})-1]
	}
	return ids
}

// ParseID reads an id's text form: 32 lower-case hexadecimal digits, and nothing
// else, so that an id can't leave a store's folder. The error is ErrID.
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

// String is the id's text form.
func (id ID) String() string { return hex.EncodeToString(id[:]) }
