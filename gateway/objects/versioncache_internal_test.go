package objects

import (
	"testing"
	"time"

	"github.com/fencegate/fencegate/gateway/blob"
)

// retainedFor returns the result of a look-up of a version with this much retention left.
func retainedFor(left time.Duration, identity string) current {
	return current{Stored: Stored{ID: blob.NewID()}, retained: retained{left: left, identity: identity}, bucket: true, key: true}
}

func TestWhatIsRememberedEndsWithItsRetentionByEitherClock(t *testing.T) {
	t.Parallel()
	var m memory
	now := time.Now()
	for key, began := range map[string]time.Time{
		"holds":              now,
		"over":               now.Add(-time.Hour),
		"over, by the wall":  now.Round(0).Add(-time.Hour),
		"in its last moment": now.Add(-time.Hour + time.Second),
	} {
		m.remember("b", key, retainedFor(time.Hour, "1"), began)
		if _, found := m.recall("b", key); found != (key == "holds") {
			t.Errorf("%s: found %v", key, found)
		}
	}
	if len(m.found) != 1 {
		t.Errorf("%d are kept, one holds", len(m.found))
	}
}

func TestOnlyWhatStaysIsRemembered(t *testing.T) {
	t.Parallel()
	var m memory
	parts := retainedFor(time.Hour, "1")
	parts.Blobs = make([][16]byte, maxCachedBlobs+1)
	for what, c := range map[string]current{
		"absent": {bucket: true, retained: retained{left: time.Hour, identity: "1"}}, "no bucket": {}, "may change": retainedFor(0, ""),
		"of nobody knows which server": retainedFor(time.Hour, ""), "of many parts": parts,
	} {
		m.remember("b", what, c, time.Now())
		if _, found := m.recall("b", what); found {
			t.Errorf("%s: it is remembered", what)
		}
	}
}

// Another history may have another version.
func TestWhatIsRememberedIsOfOneHistory(t *testing.T) {
	t.Parallel()
	for what, change := range map[string]func(*memory){
		"a connection to another one":  func(m *memory) { m.saw("2") },
		"an answer of another one":     func(m *memory) { m.remember("b", "other", retainedFor(time.Hour, "2"), time.Now()) },
		"the same, which lost commits": func(m *memory) { m.saw("") },
	} {
		var m memory
		m.remember("b", "k", retainedFor(time.Hour, "1"), time.Now())
		m.saw("1")
		if _, found := m.recall("b", "k"); !found {
			t.Fatal("it is not remembered")
		}
		change(&m)
		if _, found := m.recall("b", "k"); found {
			t.Errorf("%s: it is remembered still", what)
		}
	}
}

func TestWhatIsRememberedIsBounded(t *testing.T) {
	t.Parallel()
	var m memory
	for n := range maxCached + 10 {
		m.remember("b", time.Duration(n).String(), retainedFor(time.Hour, "1"), time.Now())
	}
	if len(m.found) != maxCached {
		t.Errorf("%d are kept", len(m.found))
	}
}
