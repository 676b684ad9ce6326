package objects

import (
	"time"

	"github.com/fencegate/fencegate/fence"
)

// Catalog is the buckets, objects and versions as PostgreSQL records them. It reads no
// bytes. Safe for concurrent use.
type Catalog struct{ db Database }

// NewCatalog is the catalogue of a database.
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
	Latest   bool // what a read without a version id finds
	Deletion bool
	Resource string
	Token    fence.Token // with which it was written; 0: the rule asked for none
	Holder   string      // who held the lease then
}
