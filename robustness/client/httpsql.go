package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/fencegate/fencegate/client"
	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/robustness/history"
	"github.com/fencegate/fencegate/wire"
)

func init() { //nolint:gochecknoinits // a table of surfaces whose parts are in several files
	makers["http-sql"] = func(e *env) (surface, error) { return &httpSQL{env: e}, nil }
}

// httpSQL is a lease by HTTP whose holder sends its statements by POST /v1/sql.
type httpSQL struct {
	rows

	env *env
}

func (s *httpSQL) close() {}

func (s *httpSQL) acquire(ctx context.Context, a ask) (holding, error) {
	lease, err := s.env.lease(ctx, a)
	if err != nil {
		return nil, err
	}
	return &sqlHolding{lease}, nil
}

type sqlHolding struct{ *httpLease }

func (h *sqlHolding) read(ctx context.Context, register string) (saw, wrong string, err error) {
	results, err := h.run(ctx, statement(selectRow, register[len(rowKind):]))
	if err != nil {
		return "", "", err
	}
	var row []string
	if len(results) != 1 || len(results[0].Rows) != 1 || json.Unmarshal(results[0].Rows[0], &row) != nil || len(row) != 1 {
		return "", fmt.Sprintf("an answer of %d results", len(results)), nil
	}
	return row[0], "", nil
}

// write is one request. Its pauses are before it, and between its statements in PostgreSQL.
func (h *sqlHolding) write(ctx context.Context, w write) error {
	var statements []wire.Statement
	if w.chance(3) {
		statements = append(statements, statement(selectRow, h.grant.Resource))
	}
	statements = append(statements, nap(w)...)
	set := len(statements)
	statements = append(statements, statement(updateRow, w.id, h.token(), h.grant.Resource))
	statements = append(statements, nap(w)...)
	w.pause(ctx)
	results, err := h.run(ctx, statements...)
	switch {
	case err != nil:
		return err
	case len(results) != len(statements):
		return &failure{outcome: history.Unknown, err: fmt.Errorf("%d results for %d statements", len(results), len(statements))}
	case results[set].RowsAffected != 1:
		return errNoRow
	}
	return nil
}

// nap returns the statement for a pause in PostgreSQL, if the plan has one here.
func nap(w write) []wire.Statement {
	if d := w.nap(); d > 0 {
		return []wire.Statement{statement("SELECT pg_sleep($1)::text", d.Seconds())}
	}
	return nil
}

func statement(sql string, args ...any) wire.Statement {
	s := wire.Statement{SQL: sql, Args: []json.RawMessage{}}
	for _, arg := range args {
		raw, err := json.Marshal(arg)
		if err != nil {
			panic(err) // strings and numbers always encode
		}
		s.Args = append(s.Args, raw)
	}
	return s
}

// run sends a request. Its errors are those of apiFailure.
func (h *sqlHolding) run(ctx context.Context, statements ...wire.Statement) ([]wire.Result, error) {
	body, err := json.Marshal(wire.SQLRequest{Statements: statements})
	if err != nil {
		return nil, err
	}
	g := h.env.cfg.Gateways[h.env.gateway()]
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, strings.TrimRight(g.API, "/")+"/v1/sql", bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	r.GetBody = nil // the transport must not send it twice
	r.Header.Set("Content-Type", "application/json")
	if h.env.cfg.Token != "" {
		r.Header.Set("Authorization", "Bearer "+h.env.cfg.Token)
	}
	fence.SetHeader(r.Header, h.grant)
	return sqlAnswer(h.env.http.Do(r))
}

func sqlAnswer(answer *http.Response, err error) ([]wire.Result, error) {
	if err != nil {
		return nil, apiFailure(&client.UnreachableError{Cause: err})
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(io.LimitReader(answer.Body, 1<<20))
	if err != nil {
		return nil, apiFailure(&client.UnreachableError{Cause: err})
	}
	if answer.StatusCode != http.StatusOK {
		p := &client.Problem{Problem: wire.Problem{Status: answer.StatusCode}}
		if err := json.Unmarshal(text, &p.Problem); err != nil {
			return nil, &failure{outcome: history.Unknown, code: answer.Status, err: errors.New("an answer that is no problem")}
		}
		return nil, apiFailure(p)
	}
	var done wire.SQLAnswer
	if err := json.Unmarshal(text, &done); err != nil {
		return nil, &failure{outcome: history.Unknown, err: err}
	}
	return done.Results, nil
}
