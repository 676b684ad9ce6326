//go:build unix

package s3 //nolint:testpackage // when it looks again shows only inside

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/versity/versitygw/s3response"

	"github.com/fencegate/fencegate/gateway/blob"
)

// lookAgain makes the next upload look whose the store is.
func (b *backend) lookAgain() {
	b.store.mu.Lock()
	defer b.store.mu.Unlock()
	b.store.until = time.Time{}
}

func (b *backend) tryUpload(text string) error {
	size := int64(len(text))
	body, err := newBody(s3response.PutObjectInput{Body: strings.NewReader(text), ContentLength: &size})
	if err == nil {
		_, err = b.upload(request{grant: proof{resource: "b", token: 1}}, target{bucket: "b", key: "k", size: size}, body, func() attributes { return attributes{} })
	}
	return err
}

// The other database takes these blobs for leftovers, and deletes them.
func TestAGatewayWhoseStoreWasTakenAcknowledgesNoMoreUploads(t *testing.T) {
	t.Parallel()
	b, put, read := newUploads(t)
	put("before", "stays")
	ours, err := b.cfg.Store.Owner(t.Context())
	if err != nil || ours == "" {
		t.Fatalf("the mark: %q, %v", ours, err)
	}
	if err := b.cfg.Store.SetOwner(t.Context(), "another database"); err != nil { // by a claim, or by one that had looked before there was a mark
		t.Fatal(err)
	}
	b.lookAgain()
	for _, text := range []string{"small", strings.Repeat("large", maxWhole)} {
		var foreign *StoreOwnerError
		if err := b.tryUpload(text); !errors.As(err, &foreign) {
			t.Errorf("%d bytes: got %v", len(text), err)
		}
	}
	if got := read("before"); got != "stays<nil>" {
		t.Errorf("it reads %q", got)
	}
	if err := b.cfg.Store.SetOwner(t.Context(), ours); err != nil {
		t.Fatal(err)
	}
	b.lookAgain()
	put("after", "welcome again")
}

// unmarked is a store whose mark can't be read.
type unmarked struct{ blob.Reserver }

func (unmarked) Owner(context.Context) (string, error) { return "", errors.New("too slow") }

func TestAMarkThatCannotBeReadAgainEndsNoUploads(t *testing.T) {
	t.Parallel()
	b, put, read := newUploads(t)
	put("before", "stays")
	b.cfg.Store = unmarked{b.cfg.Store.(blob.Reserver)}
	b.lookAgain()
	put("after", "goes on")
	if got := read("after"); got != "goes on<nil>" {
		t.Errorf("it reads %q", got)
	}
}
