package api

import (
	"net/http"
	"regexp"
	"slices"
	"strings"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/gateway/access"
	"github.com/fencegate/fencegate/wire"
)

// Route is a call of the API. The router serves it; docs/reference/http.md and openapi.json are generated from it.
type Route struct {
	Method  string
	Path    string // a part in braces is a parameter; {resource} may have slashes
	ID      string // its operationId in openapi.json; unique
	Does    string
	Open    bool          // needs no token
	Rights  []access.Verb // one of them is needed, [Route.Does] says which; none: any token
	Gateway bool          // the right is for the whole gateway, not for a resource

	Headers, Query []Parameter
	Request        any      // of package wire; nil: none
	Answer         any      // likewise
	Media          string   // of the answer; "": JSON
	Status         []int    // of success
	Codes          []string // of problems, besides [Route.CommonCodes]
}

// Parameter is a query parameter or a header.
type Parameter struct {
	Name, Meaning string
	Kind          string // a JSON Schema type; "": string
	Required      bool
}

// Routes returns all calls of the API, without the live page.
func Routes() []Route {
	return slices.Concat(leaseRoutes(), writeRoutes(), resourceRoutes(), bucketRoutes(), gatewayRoutes(), openRoutes())
}

// CommonCodes are the codes of problems that each call with a token may answer. Only a call that needs a right can be
// denied, and only one with a body can be too large.
func (r Route) CommonCodes() []string {
	if r.Open {
		return nil
	}
	all := []string{wire.CodeInvalid, wire.CodeUnauthorized, wire.CodeUnavailable, wire.CodeInternal}
	if !r.keeps() {
		all = append(all, wire.CodeRateLimited)
	}
	if len(r.Rights) > 0 {
		all = append(all, wire.CodeDenied)
	}
	if r.Request != nil {
		all = append(all, wire.CodeTooLarge)
	}
	return all
}

const (
	renewPath     = "/v1/leases/renew"
	releasePath   = "/v1/leases/release"
	resourcesPath = "/v1/resources/"
)

// keeps reports whether a call renews or releases a lease: refusing it for its rate would lose leases, or hold them
// longer.
func (r Route) keeps() bool { return r.Path == renewPath || r.Path == releasePath }

var (
	idempotencyHeader = Parameter{Name: wire.IdempotencyKey, Meaning: "16 to 128 visible ASCII characters, new for each acquisition: makes a repeat of a request whose answer was lost safe"}
	grantHeaders      = []Parameter{
		{Name: fence.HeaderResource, Meaning: "the grant's resource, percent-encoded", Required: true},
		{Name: fence.HeaderToken, Meaning: "the grant as it was issued, `34.<seal>`; a bare token if its resource takes them", Required: true},
	}
	afterQuery = Parameter{Name: "after", Meaning: "the `next` of the page before"}
	limitQuery = Parameter{Name: "limit", Meaning: "how many at most: 1 to 1000, 100 by default", Kind: "integer"}
)

func leaseRoutes() []Route {
	return []Route{
		{
			Method: http.MethodPost, Path: "/v1/leases", ID: "acquire", Does: "acquires a lease; with `wait` it waits while another holds the resource or too few Redis nodes answer",
			Rights: []access.Verb{access.Acquire}, Headers: []Parameter{idempotencyHeader}, Request: wire.AcquireRequest{}, Answer: wire.Lease{}, Status: []int{http.StatusCreated},
			Codes: []string{wire.CodeHeld, wire.CodeLeaseLost, wire.CodeKeyReused, "ZF005"},
		}, {
			Method: http.MethodPost, Path: "/v1/leases/all", ID: "acquireAll", Does: "acquires the leases of at most 100 resources, all or none",
			Rights: []access.Verb{access.Acquire}, Headers: []Parameter{idempotencyHeader}, Request: wire.AcquireAllRequest{}, Answer: wire.Leases{}, Status: []int{http.StatusCreated},
			Codes: []string{wire.CodeHeld, wire.CodeLeaseLost, wire.CodeKeyReused, "ZF005"},
		}, {
			Method: http.MethodPost, Path: renewPath, ID: "renew", Does: "extends a lease; `manage` for that of another principal. The lease is lost if the fence stands above its token, so a holder learns of a revocation",
			Rights: []access.Verb{access.Acquire, access.Manage}, Request: wire.RenewRequest{}, Answer: wire.Renewed{}, Status: []int{http.StatusOK},
			Codes: []string{wire.CodeLeaseLost},
		}, {
			Method: http.MethodPost, Path: releasePath, ID: "release", Does: "ends a lease; `manage` for that of another principal. One that is over gets the same answer, as a repeated release must; a renewal tells whether it is held",
			Rights: []access.Verb{access.Acquire, access.Manage}, Request: wire.HandleRequest{}, Status: []int{http.StatusNoContent},
		}, {
			Method: http.MethodPost, Path: "/v1/leases/credentials", ID: "credentials", Does: "issues temporary S3 credentials that are bound to the lease's token, for the lease's own principal",
			Rights: []access.Verb{access.Acquire}, Request: wire.CredentialsRequest{}, Answer: wire.Credentials{}, Status: []int{http.StatusOK},
			Codes: []string{wire.CodeLeaseLost, wire.CodeNotFound, wire.CodeNotImplemented, "ZF001"},
		},
	}
}

func writeRoutes() []Route {
	return []Route{
		{
			Method: http.MethodPost, Path: "/v1/sql", ID: "sql", Does: "runs at most 100 statements in one transaction, under a grant",
			Rights: []access.Verb{access.SQL}, Headers: grantHeaders, Request: wire.SQLRequest{}, Answer: wire.SQLAnswer{}, Status: []int{http.StatusOK},
			Codes: []string{wire.CodeSQLError, wire.CodeNotImplemented, wire.CodeUnknown, "ZF001", "ZF002", "ZF003", "ZF004", "ZF005"},
		}, {
			Method: http.MethodPost, Path: "/v1/check", ID: "check", Does: "says whether the fence accepts a grant now; `sql` for a bare token, which raises the fence if it is the highest",
			Rights: []access.Verb{access.Acquire, access.SQL}, Headers: grantHeaders, Answer: wire.Checked{}, Status: []int{http.StatusOK},
			Codes: []string{wire.CodeSQLError, wire.CodeNotImplemented, wire.CodeUnknown, "ZF001", "ZF002", "ZF003", "ZF004", "ZF005"},
		}, {
			Method: http.MethodGet, Path: "/v1/endpoints", ID: "endpoints", Does: "says where the PostgreSQL port and the S3 port are", Answer: wire.Endpoints{}, Status: []int{http.StatusOK},
		},
	}
}

func resourceRoutes() []Route {
	inspect := []access.Verb{access.Inspect}
	return []Route{
		{
			Method: http.MethodGet, Path: "/v1/resources", ID: "list", Does: "lists the resources that have a fence and that the principal may inspect, in the order of their names' bytes",
			Rights: inspect, Query: []Parameter{{Name: "prefix", Meaning: "of the names"}, afterQuery, limitQuery, {Name: "held", Meaning: "`true`: only those that somebody holds, so a page may have few and yet a next one", Kind: "boolean"}},
			Answer: wire.Resources{}, Status: []int{http.StatusOK},
		},
		{
			Method: http.MethodGet, Path: resourcesPath + "{resource}", ID: "inspect", Does: "shows a resource: its fence, and who holds its lock on which server",
			Rights: inspect, Answer: wire.Resource{}, Status: []int{http.StatusOK}, Codes: []string{wire.CodeNotFound},
		},
		{
			Method: http.MethodPost, Path: resourcesPath + "{resource}/revoke", ID: "revoke", Does: "revokes the holder's grant: raises the fence above it and returns that token, which nobody holds",
			Rights: []access.Verb{access.Revoke}, Request: wire.RevokeRequest{}, Answer: wire.Revoked{}, Status: []int{http.StatusOK},
			Codes: []string{wire.CodeNotFound, wire.CodeUnknown, "ZF005"},
		},
	}
}

func bucketRoutes() []Route {
	buckets := []access.Verb{access.Buckets}
	return []Route{
		{
			Method: http.MethodGet, Path: "/v1/buckets", ID: "listBuckets", Does: "lists the buckets, in the order of their names", Rights: buckets, Gateway: true, Query: []Parameter{afterQuery, limitQuery},
			Answer: wire.Buckets{}, Status: []int{http.StatusOK}, Codes: []string{wire.CodeNotImplemented},
		},
		{
			Method: http.MethodGet, Path: "/v1/buckets/{bucket}", ID: "inspectBucket", Does: "shows a bucket", Rights: buckets, Gateway: true,
			Answer: wire.Bucket{}, Status: []int{http.StatusOK}, Codes: []string{wire.CodeNotFound, wire.CodeNotImplemented},
		},
		{
			Method: http.MethodPut, Path: "/v1/buckets/{bucket}", ID: "ensureBucket", Does: "makes a bucket (201), or changes its settings (200); the rule changes only while the bucket holds no object", Rights: buckets, Gateway: true,
			Request: wire.BucketRequest{}, Answer: wire.Bucket{}, Status: []int{http.StatusOK, http.StatusCreated},
			Codes: []string{wire.CodeNotFound, wire.CodeConflict, wire.CodeNotImplemented},
		},
		{
			Method: http.MethodPut, Path: "/v1/buckets/{bucket}/rules", ID: "setPrefixRule", Does: "sets a rule for the keys below a prefix, while no object is there", Rights: buckets, Gateway: true,
			Request: wire.PrefixRule{}, Answer: wire.Bucket{}, Status: []int{http.StatusOK},
			Codes: []string{wire.CodeNotFound, wire.CodeConflict, wire.CodeNotImplemented},
		},
		{
			Method: http.MethodDelete, Path: "/v1/buckets/{bucket}/rules", ID: "dropPrefixRule", Does: "removes the rule of a prefix, while no object is there", Rights: buckets, Gateway: true,
			Query: []Parameter{{Name: "prefix", Meaning: "whose rule goes", Required: true}}, Answer: wire.Bucket{}, Status: []int{http.StatusOK},
			Codes: []string{wire.CodeNotFound, wire.CodeConflict, wire.CodeNotImplemented},
		},
	}
}

func gatewayRoutes() []Route {
	inspect, sessions := []access.Verb{access.Inspect}, []access.Verb{access.Sessions}
	return []Route{
		{
			Method: http.MethodGet, Path: "/v1/sessions", ID: "sessions", Does: "lists the sessions of this gateway's PostgreSQL port, the oldest first", Rights: sessions, Gateway: true,
			Answer: wire.Sessions{}, Status: []int{http.StatusOK}, Codes: []string{wire.CodeNotImplemented},
		},
		{
			Method: http.MethodPost, Path: "/v1/sessions/{session}/end", ID: "endSession", Does: "ends a session of this gateway's PostgreSQL port, FATAL `57P01`", Rights: sessions, Gateway: true,
			Request: wire.EndRequest{}, Status: []int{http.StatusNoContent}, Codes: []string{wire.CodeNotFound, wire.CodeNotImplemented},
		},
		{
			Method: http.MethodGet, Path: "/v1/events", ID: "events", Does: "streams this gateway's events as `text/event-stream`: the kept ones, the oldest first, then new ones; the data of each event has these fields",
			Rights: inspect, Headers: []Parameter{{Name: "Last-Event-ID", Meaning: "only events after this one; an event of the kind `missed` says how many were dropped"}},
			Query:  []Parameter{{Name: "follow", Meaning: "`false`: ends after the kept events; default `true`", Kind: "boolean"}, {Name: "kind", Meaning: "`refused`: only the refused writes; the latest 512 are kept apart from other events"}},
			Answer: wire.Event{}, Media: "text/event-stream", Status: []int{http.StatusOK}, Codes: []string{wire.CodeNotImplemented},
		},
		{
			Method: http.MethodGet, Path: "/v1/status", ID: "status", Does: "shows the state of the gateway, also while PostgreSQL or the lock is unavailable; a principal that may not inspect everything sees no counts, no names of nodes and no keys",
			Rights: inspect, Answer: wire.Status{}, Status: []int{http.StatusOK},
		},
		{
			Method: http.MethodGet, Path: "/metrics", ID: "metrics", Does: "the [metrics](metrics.md), in Prometheus' text format", Rights: []access.Verb{access.Metrics}, Gateway: true,
			Media: "text/plain", Status: []int{http.StatusOK}, Codes: []string{wire.CodeNotImplemented},
		},
	}
}

func openRoutes() []Route {
	return []Route{
		{Method: http.MethodGet, Path: "/healthz", ID: "health", Does: "says that the process runs: `{\"status\":\"ok\"}`", Open: true, Answer: wire.Health{}, Status: []int{http.StatusOK}},
		{
			Method: http.MethodGet, Path: "/readyz", ID: "ready", Does: "says whether the gateway can serve", Open: true,
			Query:  []Parameter{{Name: "for", Meaning: "`lease` (the default), `sql`, `pg` or `s3`: what is to be served"}, {Name: "leaving", Meaning: "`404`: a gateway that is about to stop answers 404 instead of 503"}},
			Answer: wire.Readiness{}, Status: []int{http.StatusOK}, Codes: []string{wire.CodeInvalid, wire.CodeNotFound, wire.CodeUnavailable},
		},
		{
			Method: http.MethodGet, Path: "/openapi.json", ID: "openapi", Does: "describes the API as OpenAPI 3.1", Open: true, Status: []int{http.StatusOK},
		},
	}
}

// pattern is the path for the router. A path that begins with a resource's name becomes a wildcard, because the name
// may contain slashes; the handler parses it.
func (r Route) pattern() string {
	if head, _, ok := strings.Cut(r.Path, "{resource}"); ok {
		return head + "*"
	}
	return pathPart.ReplaceAllString(r.Path, ":$1")
}

var pathPart = regexp.MustCompile(`\{(\w+)\}`)
