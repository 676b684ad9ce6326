package client

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/wire"
)

// Problem is a gateway's error response.
type Problem struct{ wire.Problem }

func (p *Problem) Error() string {
	text := p.Detail
	if text == "" {
		text = p.Title
	}
	if text == "" {
		text = http.StatusText(p.Status)
	}
	return text
}

// Hint says what to do.
func (p *Problem) Hint() string { return p.Problem.Hint }

// Is matches the fence's sentinels by code, so that errors.Is(err, fence.ErrStale) works for HTTP clients too.
func (p *Problem) Is(target error) bool {
	if p.Code == wire.CodeInvalid {
		return target == fence.ErrInvalid
	}
	for _, c := range fence.Codes {
		if c.SQLState == p.Code {
			return target == c.Err
		}
	}
	return false
}

// problemOf returns the error of an answer that is no success.
func problemOf(resp *http.Response, body []byte) error {
	status, p := resp.StatusCode, &Problem{}
	if to, err := resp.Location(); err == nil && status >= http.StatusMultipleChoices && status < http.StatusBadRequest {
		to.User, to.RawQuery, to.Fragment = nil, "", "" // they may be secret
		return &Problem{wire.Problem{
			Status: status,
			Detail: fmt.Sprintf("the gateway's address redirects to %s", to),
			Hint:   "redirects are not followed: name the address of the gateway's HTTP API itself with --gateway",
		}}
	}
	if err := json.Unmarshal(body, &p.Problem); err != nil || (p.Title == "" && p.Detail == "" && p.Code == "") {
		text := strings.Join(strings.Fields(string(body[:min(len(body), 200)])), " ")
		p = &Problem{wire.Problem{
			Detail: fmt.Sprintf("the gateway answered %d %s: %s", status, http.StatusText(status), text),
			Hint:   "check that the URL is a gateway's HTTP API, not another port or server",
		}}
	}
	p.Status = status
	return p
}

// UnreachableError says that no answer arrived. It is unknown whether the gateway carried the request out.
type UnreachableError struct {
	URL   string
	Cause error
}

func (e *UnreachableError) Error() string {
	return fmt.Sprintf("no answer from the gateway at %s: %v", e.URL, e.Cause)
}

func (e *UnreachableError) Unwrap() []error { return []error{e.Cause, fence.ErrUnknown} }
