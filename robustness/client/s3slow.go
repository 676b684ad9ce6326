package client

import (
	"context"
	"io"
	"net/http"
	"sync"
)

// putSlow writes an object whose body is sent in pieces, with the plan's pauses between them: by the SDK; with chunks
// and a trailer, as SDKs send them over TLS; or unsigned, as curl does.
func putSlow(ctx context.Context, h *s3Holding, w write) error {
	size := 4<<10 + h.s.env.dice.below(3*mebibyte)
	if h.s.env.dice.chance(3) {
		size = 100 + h.s.env.dice.below(reserved)
	}
	pauses := 1 + h.s.env.dice.below(3)
	switch h.s.env.dice.below(4) {
	case 0:
		return h.putRaw(ctx, bodyOf(w.id, size), w.pause, pauses, chunkedTrailer)
	case 1:
		return h.putRaw(ctx, bodyOf(w.id, size), w.pause, pauses, unsignedPayload)
	}
	return h.putPaced(ctx, bodyOf(w.id, size), w.pause, pauses)
}

// putPaced is putObject with pauses while the body is sent.
func (h *s3Holding) putPaced(ctx context.Context, b *body, pause func(context.Context), pauses int) error {
	ctx, p := withPace(ctx, b.size, pause, pauses)
	defer p.end()
	return h.putObject(ctx, b)
}

// pace makes one request stop several times in the middle of its body. Its pauses run on the transport's goroutine. end
// waits for a running pause.
type pace struct {
	mu    sync.Mutex
	ctx   context.Context //nolint:containedctx // of the pauses
	stop  context.CancelFunc
	pause func(context.Context)
	after []int64 // ascending numbers of bytes after which it pauses
	sent  int64
}

type paceKey struct{}

func withPace(ctx context.Context, size int64, pause func(context.Context), pauses int) (context.Context, *pace) {
	p := &pace{pause: pause}
	p.ctx, p.stop = context.WithCancel(ctx)
	for i := range int64(pauses) {
		p.after = append(p.after, size*(i+1)/int64(pauses+1))
	}
	return context.WithValue(ctx, paceKey{}, p), p
}

func (p *pace) end() {
	p.stop()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.after = nil
}

// reached is called after each piece of the body. It fails if the call was abandoned during a pause.
func (p *pace) reached(n int) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sent += int64(n)
	for len(p.after) > 0 && p.sent >= p.after[0] {
		p.after = p.after[1:]
		p.pause(p.ctx)
	}
	return p.ctx.Err()
}

// next is how many bytes may be sent until the next pause, at most room.
func (p *pace) next(room int) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.after) == 0 || p.sent >= p.after[0] {
		return room
	}
	return int(min(int64(room), p.after[0]-p.sent))
}

// paced is a transport that sends bodies with the pace in their
// context. The first attempt that reaches a pause takes it.
type paced struct{ *http.Transport }

func (t paced) RoundTrip(r *http.Request) (*http.Response, error) {
	p, ok := r.Context().Value(paceKey{}).(*pace)
	if !ok || r.Body == nil || r.Body == http.NoBody {
		return t.Transport.RoundTrip(r)
	}
	r = r.Clone(r.Context())
	r.Body = pacedBody{r.Body, p}
	return t.Transport.RoundTrip(r)
}

type pacedBody struct {
	io.ReadCloser

	pace *pace
}

func (b pacedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p[:b.pace.next(len(p))])
	if over := b.pace.reached(n); over != nil {
		return 0, over
	}
	return n, err
}
