package objects

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgtype"
)

// The question as PostgreSQL's protocol has it, in the binary format: it is asked
// for each read, and a general decoder took as long as the rest of it.

// current is the current version of a key, as far as there is one.
type current struct {
	Stored

	bucket, key bool // whether there is such a bucket, and such a key in it
}

const (
	askedColumns = `v.id, v.blobs, v.blob_sizes, v.size, v.etag, (v.attributes - 'part_checksums')::text,
	coalesce(v.created_at, b.created_at), b.keep_count IS DISTINCT FROM 0`

	sqlAskOne = "SELECT 1::bigint, " + askedColumns + `
	FROM objects.buckets b
	LEFT JOIN objects.pointers p ON p.bucket = b.name AND p.key = $2
	LEFT JOIN objects.versions v ON v.id = p.version
	WHERE b.name = $1`
	// The arrays are hidden from the planner, which would make a plan for each
	// length of them.
	sqlAskMany = "SELECT w.n, " + askedColumns + `
	FROM unnest((SELECT $1::text[]), (SELECT $2::text[])) WITH ORDINALITY AS w(bucket, key, n)
	JOIN objects.buckets b ON b.name = w.bucket COLLATE "C"
	LEFT JOIN objects.pointers p ON p.bucket = b.name AND p.key = w.key COLLATE "C"
	LEFT JOIN objects.versions v ON v.id = p.version`
)

var binaryFormat = []int16{pgtype.BinaryFormatCode} // of all

// statement is the text and the values of a question.
func (q *question) statement() (sql string, values [][]byte) {
	if len(q.asked) == 1 {
		return sqlAskOne, [][]byte{[]byte(q.asked[0].bucket), []byte(q.asked[0].key)}
	}
	return sqlAskMany, [][]byte{
		q.texts(func(l *Lookup) string { return l.bucket }),
		q.texts(func(l *Lookup) string { return l.key }),
	}
}

const arrayHead = 20 // bytes: dimensions, flags, type, length, lower bound

// texts encodes a text[] of one text for each look-up.
func (q *question) texts(of func(*Lookup) string) []byte {
	size := arrayHead
	for _, l := range q.asked {
		size += 4 + len(of(l))
	}
	b := make([]byte, 0, size)
	for _, head := range []uint32{1, 0, pgtype.TextOID, uint32(len(q.asked)), 1} {
		b = binary.BigEndian.AppendUint32(b, head)
	}
	for _, l := range q.asked {
		b = binary.BigEndian.AppendUint32(b, uint32(len(of(l))))
		b = append(b, of(l)...)
	}
	return b
}

var errAnswer = errors.New("PostgreSQL's answer has an unexpected form")

// take reads one row of the answer. What it keeps is copied.
func (q *question) take(row [][]byte) error {
	const columns = 9
	if len(row) != columns || len(row[0]) != 8 {
		return errAnswer
	}
	n := binary.BigEndian.Uint64(row[0])
	if n < 1 || n > uint64(len(q.asked)) {
		return errAnswer
	}
	c := &q.asked[n-1].found
	c.bucket, c.key = true, row[1] != nil
	if len(row[7]) != 8 || len(row[8]) != 1 {
		return errAnswer
	}
	c.CreatedAt, c.Kept = timeOf(row[7]), row[8][0] != 0
	if !c.key {
		return nil
	}
	return c.take(row[1:7])
}

// take reads what is there of a version only.
func (v *Stored) take(row [][]byte) error {
	if len(row[0]) != len(v.ID) || len(row[3]) != 8 {
		return errAnswer
	}
	copy(v.ID[:], row[0])
	err := elements(row[1], len(v.ID), func(b []byte) { v.Blobs = append(v.Blobs, [16]byte(b)) })
	if err != nil {
		return err
	}
	err = elements(row[2], 8, func(b []byte) { v.BlobSizes = append(v.BlobSizes, int64(binary.BigEndian.Uint64(b))) })
	if err != nil {
		return err
	}
	if len(v.Blobs) != len(v.BlobSizes) {
		return errAnswer
	}
	v.Size, v.ETag = int64(binary.BigEndian.Uint64(row[3])), string(row[4])
	if err := json.Unmarshal(row[5], &v.Attributes); err != nil {
		return fmt.Errorf("read the attributes of version %x: %w", v.ID, err)
	}
	return nil
}

// elements are those of an array of one dimension, each of the same size, none NULL.
func elements(array []byte, size int, each func([]byte)) error {
	if len(array) >= 12 && binary.BigEndian.Uint32(array) == 0 { // no dimension: empty
		return nil
	}
	if len(array) < arrayHead || binary.BigEndian.Uint32(array) != 1 {
		return errAnswer
	}
	n := int64(binary.BigEndian.Uint32(array[12:]))
	array = array[arrayHead:]
	if int64(len(array)) != n*int64(4+size) {
		return errAnswer
	}
	for ; len(array) > 0; array = array[4+size:] {
		if binary.BigEndian.Uint32(array) != uint32(size) {
			return errAnswer
		}
		each(array[4 : 4+size])
	}
	return nil
}

// timeOf reads a timestamptz: microseconds since the begin of 2000.
func timeOf(b []byte) time.Time {
	const beginOf2000 = 946_684_800 // Unix seconds
	return time.Unix(beginOf2000, 0).Add(time.Duration(int64(binary.BigEndian.Uint64(b))) * time.Microsecond)
}
