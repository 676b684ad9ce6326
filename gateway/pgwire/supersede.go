package pgwire

import (
	"context"
	"slices"
	"time"

	"github.com/fencegate/fencegate/fence"
)

// Superseded ends the sessions that carry an older grant of the resource than token. A caller that has just armed it
// calls this, so that locks of a stale holder are free. The next [Server.Look] finds a session that is still logging
// in.
func (s *Server) Superseded(resource string, token fence.Token) {
	s.superseded(map[string]fence.Token{resource: token})
}

// superseded is Superseded for several resources, in one pass over the sessions.
func (s *Server) superseded(recorded map[string]fence.Token) {
	s.each(func(ss *session) { ss.superseded(recorded) })
}

// Moved ends the sessions that are on a server other than to, and lets no session open elsewhere from now on.
func (s *Server) Moved(to Upstream) {
	s.home.Store(&to)
	s.each(func(ss *session) {
		ss.mu.Lock()
		defer ss.mu.Unlock()
		if ss.phase == open && ss.way.elsewhere(to) {
			ss.cutLocked(errMoved)
		}
	})
}

// errMoved is the error for a session that [Server.Moved] ends.
var errMoved = &fatalError{
	code: codeAdminShutdown, message: "terminating connection: the gateway now uses another PostgreSQL server",
	hint: "Connect again, and check the outcome of the last transaction.",
}

// watch asks the fence for the grants that sessions carry, until ctx ends: other gateways arm, too.
func (s *Server) watch(ctx context.Context) {
	tick := time.NewTicker(s.cfg.FencesEvery)
	defer tick.Stop()
	for failing := false; ; {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		err := s.Look(ctx)
		if err != nil && !failing && ctx.Err() == nil { // once per outage
			s.log.Warn("failed to find sessions whose grants are superseded; the fence refuses their writes", "error", err)
		}
		failing = err != nil
	}
}

// Look asks the fence now for the grants that sessions carry, and ends superseded sessions: those of these resources,
// or of all if none is named.
func (s *Server) Look(ctx context.Context, only ...string) error {
	if s.cfg.Fences == nil {
		return nil
	}
	wanted := make(map[string]bool, len(only)) // false: seen already
	for _, resource := range only {
		wanted[resource] = true
	}
	var resources []string
	s.each(func(ss *session) {
		for _, c := range ss.watched() {
			if want, known := wanted[c.resource]; want || !known && len(only) == 0 {
				wanted[c.resource] = false
				resources = append(resources, c.resource)
			}
		}
	})
	if len(resources) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, s.cfg.DialTimeout)
	defer cancel()
	recorded, err := s.cfg.Fences(ctx, resources)
	if err != nil {
		return err
	}
	s.superseded(recorded)
	return nil
}

// watched returns the grants that the session depends on.
func (s *session) watched() []claim {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.phase != open || s.closing == cutting {
		return nil
	}
	return slices.Clone(s.claims)
}

// superseded ends the session if a recorded token supersedes a grant that it carries and the session is open: a client
// that has not logged in must learn nothing about fences.
func (s *session) superseded(recorded map[string]fence.Token) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.phase != open || s.closing == cutting {
		return
	}
	for i := range s.claims {
		c := &s.claims[i]
		switch token, known := recorded[c.resource]; {
		case !known:
		case c.token == 0: // a seal without its token: any higher token from now on is newer
			c.token = token
		case c.token < token && s.closing != cutting:
			s.srv.counters.superseded.Add(1)
			s.cutLocked(staleError(&fence.StaleError{Resource: c.resource, Presented: c.token, Recorded: token}))
		}
	}
}

// lookAtEnd bounds the query for the fences of a session that PostgreSQL has ended.
const lookAtEnd = 500 * time.Millisecond

// outlived reports whether PostgreSQL ends the session, FATAL 57P01, because of a newer grant; the client then gets
// ZF001 instead. Arming ends the backends that wait behind an older grant before the gateway is notified.
func (s *session) outlived(stream *serverStream, b []byte) bool {
	if len(b) == 0 || b[0] != typeError || !stream.boundary() || errorField(b, 'C') != codeAdminShutdown {
		return false
	}
	var resources []string
	for _, c := range s.watched() {
		resources = append(resources, c.resource)
	}
	if len(resources) > 0 {
		ctx, cancel := context.WithTimeout(context.Background(), lookAtEnd)
		_ = s.srv.Look(ctx, resources...) // on an error PostgreSQL's own message is passed on
		cancel()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closing == cutting && s.why != nil
}

func staleError(stale *fence.StaleError) *fatalError {
	code, _ := fence.CodeOf(stale)
	return &fatalError{code: code.SQLState, message: stale.Error(), detail: staleDetail(stale), hint: code.Hint}
}

// staleDetail returns the DETAIL in the form of PostgreSQL's fence.
func staleDetail(e *fence.StaleError) string {
	return jsonOf(struct {
		Resource  string      `json:"resource"`
		Presented fence.Token `json:"presented"`
		Recorded  fence.Token `json:"recorded"`
	}{e.Resource, e.Presented, e.Recorded})
}
