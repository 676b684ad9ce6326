package objects

import (
	"time"

	"github.com/fencegate/fencegate/fence"
)

// Catalog holds the buckets, objects and versions that PostgreSQL records. It reads no bytes. Safe for concurrent use.
type Catalog struct{ db Database }

// NewCatalog returns the catalog of a database.
func NewCatalog(db Database) *Catalog { return &Catalog{db: db} }

// Object is the current version of a key.
type Object struct {
	Key      string
	Size     int64 // bytes
	ETag     string
	Modified time.Time
}

// Version is a version of a key that is current or kept.
type Version struct {
	Object

	ID       string
	Latest   bool // the version that a read without a version id finds
	Deletion bool
	Resource string
	Token    fence.Token // with which it was written; 0: the rule needed none
	Holder   string      // the holder of the lease at that time
}
