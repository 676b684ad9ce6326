package pgwire

import (
	"context"
	"slices"
	"time"

	"github.com/fencegate/fencegate/fence"
)

// Superseded ends the sessions that carry an older grant of the resource than
// token: for the caller that has just armed it, so that nobody waits for what a stale
// holder has locked. A session that is logging in is found by the next look.
func (s *Server) Superseded(resource string, token fence.Token) {
	s.each(func(ss *session) { ss.superseded(resource, token) })
}

// Moved ends the sessions that are on another server than this one, and has none open there from now on.
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

// errMoved is what the client of a session is told that is on another server than [Server.Moved] says.
var errMoved = &fatalError{
	code: codeAdminShutdown, message: "terminating connection: PostgreSQL is another server now",
	hint: "Connect again, and check the outcome of the last transaction.",
}

// watch looks at the fence of each grant that a session carries, until ctx ends:
// other gateways arm, too.
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
		if err != nil && !failing && ctx.Err() == nil { // once, until it works again
			s.log.Warn("failed to find sessions whose grants are superseded; the fence refuses their writes", "error", err)
		}
		failing = err != nil
	}
}

// Look looks now at the fences of the grants that sessions carry, and ends those
// that are superseded: of these resources, or of all where none is named.
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
	for resource, token := range recorded {
		s.Superseded(resource, token)
	}
	return nil
}

// watched are the grants whose fences decide whether the session goes on.
func (s *session) watched() []claim {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.phase != open || s.closing == cutting {
		return nil
	}
	return slices.Clone(s.claims)
}

// superseded ends the session if token supersedes one that it carries. Only once
// it is open: a client that has not logged in learns nothing of fences.
func (s *session) superseded(resource string, token fence.Token) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.phase != open || s.closing == cutting {
		return
	}
	for i := range s.claims {
		switch c := &s.claims[i]; {
		case c.resource != resource:
		case c.token == 0: // a seal without its token: from now on, what is higher is newer
			c.token = token
		case c.token < token && s.closing != cutting:
			s.srv.counters.superseded.Add(1)
			s.cutLocked(staleError(&fence.StaleError{Resource: resource, Presented: c.token, Recorded: token}))
		}
	}
}

// lookAtEnd bounds the look at the fences of a session that PostgreSQL has ended.
const lookAtEnd = 500 * time.Millisecond

// outlived reports whether PostgreSQL ends the session, FATAL 57P01, because of a newer grant: then the client is told that.
// Whoever arms a fence ends the backends that wait behind an older grant, before the gateway hears of it.
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
		_ = s.srv.Look(ctx, resources...) // else PostgreSQL's own words are passed on
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

// staleDetail is DETAIL as PostgreSQL's fence writes it.
func staleDetail(e *fence.StaleError) string {
	return jsonOf(struct {
		Resource  string      `json:"resource"`
		Presented fence.Token `json:"presented"`
		Recorded  fence.Token `json:"recorded"`
	}{e.Resource, e.Presented, e.Recorded})
}
