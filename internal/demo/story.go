package demo

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/fencegate/fencegate/fence"
)

// Run runs the story. It returns nil only if every step went as expected.
func Run(ctx context.Context, cfg Config) error {
	defer cleanUp(ctx, cfg)
	if err := prepare(ctx, cfg); err != nil {
		return fmt.Errorf("prepare the demo's table and bucket: %w", err)
	}

	s := story{cfg: cfg, say: cfg.Screen}
	defer s.endWorkers()
	for _, chapter := range []func(context.Context) error{s.pausesA, s.letsBWork, s.wakesA, s.checks} {
		if err := chapter(ctx); err != nil {
			return err
		}
	}
	return nil
}

const (
	textA = "cancelled by worker A"
	textB = "paid, by worker B"
)

// story holds the state that its chapters share.
type story struct {
	cfg            Config
	say            *Screen
	a, b           *process
	tokenA, tokenB fence.Token
}

func (s *story) endWorkers() {
	for _, p := range []*process{s.a, s.b} {
		if p != nil {
			p.end()
		}
	}
}

func (s *story) pausesA(ctx context.Context) error {
	s.say.Explain(ctx, "Two workers want to change the same order. A lease decides who may.",
		"Worker A gets it, reads the order, and starts to work.",
		"Then A is paused: a long GC, a swapped-out VM, a closed laptop. Here: SIGSTOP.",
		"A does not know. Nothing in A can notice, because nothing in A runs.")
	var err error
	if s.a, err = startWorker(s.cfg, "A"); err != nil {
		return err
	}
	if s.tokenA, err = s.acquire(ctx, s.a); err != nil {
		return err
	}
	s.say.Step("worker A", fmt.Sprintf("acquired %s: token %d, lease of %s", resourceOf(s.cfg.Bucket), s.tokenA, s.cfg.TTL))
	if err := s.reads(ctx, s.a); err != nil {
		return err
	}
	if err := s.a.freeze(); err != nil {
		return err
	}
	s.say.Step("worker A", fmt.Sprintf("stopped with SIGSTOP (pid %d), in the middle of its work", s.a.pid()))
	return nil
}

func (s *story) letsBWork(ctx context.Context) error {
	s.say.Explain(ctx, "A's lease runs out. Worker B was waiting for it, and takes over with a higher token.",
		"Acquiring raises the fence in PostgreSQL before B may even read.")
	var err error
	if s.b, err = startWorker(s.cfg, "B"); err != nil {
		return err
	}
	s.say.Step("worker B", "waits for A's lease to end")
	if s.tokenB, err = s.acquire(ctx, s.b); err != nil {
		return err
	}
	if s.tokenB <= s.tokenA {
		return mismatch("B's token %d is not higher than A's %d", s.tokenB, s.tokenA)
	}
	s.say.Step("worker B", fmt.Sprintf("acquired %s: token %d", resourceOf(s.cfg.Bucket), s.tokenB))
	if err := s.reads(ctx, s.b); err != nil {
		return err
	}
	s.b.command("write " + textB)
	sql, err := s.b.await(ctx, "sql")
	if err != nil {
		return err
	}
	upload, err := s.b.await(ctx, "upload")
	if err != nil {
		return err
	}
	if !sql.OK || !upload.OK {
		return mismatch("B, who holds the lease, was refused: SQL %s %s; upload %s %s", sql.Code, sql.Message, upload.Code, upload.Message)
	}
	s.say.Good("worker B", fmt.Sprintf("wrote the order (%q) and uploaded %s/%s", textB, s.cfg.Bucket, objectKey))
	return nil
}

func (s *story) wakesA(ctx context.Context) error {
	s.say.Explain(ctx, "A wakes up. It still believes that it holds the lease, and goes on where it was:",
		"it sends its UPDATE and its upload, with the token it was given.")
	s.a.command("write " + textA) // stays in A's pipe until A runs again
	if err := s.a.thaw(); err != nil {
		return err
	}
	s.say.Step("worker A", "woken with SIGCONT; goes on as if nothing had happened")
	sql, err := s.a.await(ctx, "sql")
	if err != nil {
		return err
	}
	upload, err := s.a.await(ctx, "upload")
	if err != nil {
		return err
	}
	stale, _ := fence.CodeOf(fence.ErrStale)
	if sql.OK || sql.Code != stale.SQLState {
		return mismatch("A's UPDATE should have been refused with %s; it got: ok=%t %s %s", stale.SQLState, sql.OK, sql.Code, sql.Message)
	}
	s.say.Bad("worker A", fmt.Sprintf("UPDATE refused: %s %s", sql.Code, sql.Message))
	if upload.OK || upload.Code != stale.S3Code || upload.Status != stale.S3Status {
		return mismatch("A's upload should have been refused with %d %s; it got: ok=%t %d %s %s",
			stale.S3Status, stale.S3Code, upload.OK, upload.Status, upload.Code, upload.Message)
	}
	s.say.Bad("worker A", fmt.Sprintf("upload refused: %d %s", upload.Status, upload.Code))
	return s.triesPastTheGateway(ctx, stale.SQLState)
}

// triesPastTheGateway shows that the table itself refuses, even without the gateway.
func (s *story) triesPastTheGateway(ctx context.Context, stale string) error {
	s.say.Explain(ctx, "Perhaps past the gateway? A connects straight to PostgreSQL.")
	s.a.command("bypass " + textA)
	sql, err := s.a.await(ctx, "bypass")
	if err != nil {
		return err
	}
	if sql.OK || sql.Code != stale {
		return mismatch("A's UPDATE past the gateway should have been refused with %s; it got: ok=%t %s %s", stale, sql.OK, sql.Code, sql.Message)
	}
	s.say.Bad("worker A", "UPDATE past the gateway refused too, by the table's own guard: "+sql.Code)
	return nil
}

// checks reads the storage: the row on its own connection, the object through worker B.
func (s *story) checks(ctx context.Context) error {
	s.say.Explain(ctx, "What counts is what the storage holds now.")
	conn, err := pgx.Connect(ctx, s.cfg.AdminURL)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	var row string
	if err := conn.QueryRow(ctx, readStatus).Scan(&row); err != nil {
		return err
	}
	s.b.command("download")
	object, err := s.b.await(ctx, "download")
	if err != nil {
		return err
	}
	if row != textB || !object.OK || object.Text != textB {
		return mismatch("the row holds %q and the object %q %s; both should hold %q", row, object.Text, object.Message, textB)
	}
	s.b.command("delete")
	if gone, err := s.b.await(ctx, "delete"); err != nil || !gone.OK {
		return errors.Join(err, mismatch("B, who holds the lease, could not delete its object: %s %s", gone.Code, gone.Message))
	}
	s.say.Good("storage", fmt.Sprintf("the order and the object still hold B's work: %q", row))
	return nil
}

func (s *story) acquire(ctx context.Context, p *process) (fence.Token, error) {
	e, err := p.await(ctx, "acquired")
	if err != nil {
		return 0, err
	}
	if !e.OK {
		return 0, mismatch("worker %s did not get the lease: %s", p.name, e.Message)
	}
	return e.Token, nil
}

func (s *story) reads(ctx context.Context, p *process) error {
	e, err := p.await(ctx, "read")
	if err != nil {
		return err
	}
	if !e.OK {
		return mismatch("worker %s could not read the order: %s %s", p.name, e.Code, e.Message)
	}
	s.say.Step("worker "+p.name, fmt.Sprintf("read the order: %q", e.Text))
	return nil
}
