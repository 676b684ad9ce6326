package s3

import (
	"net/http"
	"strings"

	"github.com/gofiber/fiber/v3"
	"github.com/versity/versitygw/auth"
	"github.com/versity/versitygw/metrics"
	"github.com/versity/versitygw/s3api/controllers"
	"github.com/versity/versitygw/s3api/middlewares"
	"github.com/versity/versitygw/s3err"

	"github.com/fencegate/fencegate/gateway/access"
	"github.com/fencegate/fencegate/gateway/s3/credentials"
	"github.com/fencegate/fencegate/gateway/s3/edge"
	"github.com/fencegate/fencegate/gateway/s3/s3error"
)

// level is what a path names.
type level uint8

const (
	ofService level = iota
	ofBucket
	ofObject
	ofNothing // a key without a bucket
	levels
)

// place holds the routes of one method on one level, in the order in which they are tried.
type place struct {
	method string
	level  level
	with   string // parameters that its routes read, besides those that select them
	routes []route
}

// route is one operation, and what in a request selects it.
type route struct {
	sub    string    // S3's sub-resource, a parameter; "": the place itself
	and    string    // another required parameter; with =VALUE it must have this value
	header string    // a required header
	action string    // versitygw's name of the operation
	do     serveFunc // versitygw's, or in its form
	own    ownAnswer // our own. Without either the answer is NotImplemented
	steps  steps
}

// ctl holds versitygw's operations, which call the backend.
type ctl = controllers.S3ApiController

// serveFunc serves a route.
type serveFunc func(*port, fiber.Ctx) (*controllers.Response, error)

// ownAnswer is an operation of our own, for what versitygw parses but does not implement, or not as needed. document is
// the answer's document; nil for none.
type ownAnswer func(*backend, target) (document any, status int, err error)

// steps are a route's deviations before its operation. By default the request must be signed, its body's checksum must
// match X-Amz-Content-Sha256, and the bucket's CORS rules apply.
type steps uint16

const (
	checked     steps = 1 << iota // the body's other checksums match, if any
	needsBody                     // checked, and the body is not empty
	needsSum                      // checked, and there is a checksum
	streamed                      // the operation streams the body
	sumOptional                   // X-Amz-Content-Sha256 is optional
	anyRegion                     // signed for this region, or for the default one
	corsFirst                     // CORS rules apply to refusals, too
	noCORS
	noACL     // the bucket may be missing, or there is none
	unnamed   // there is no name to check
	anonymous // no signature needed: CORS preflight
	open      // no signature needed, and none of the above
)

func (s steps) has(one steps) bool { return s&one != 0 }

const headerCopySource = "X-Amz-Copy-Source"

func (r route) served() bool { return r.do != nil || r.own != nil }

// port is the S3 port's HTTP application: versitygw's middlewares and operations, in our order and on our routes.
type port struct {
	ctl

	backend    *backend
	authorizer *authorizer
	iam        iam
	root       middlewares.RootUserConfig
	region     string
	services   controllers.Services
	cors       fiber.Handler

	router     *router
	handlers   []fiber.Handler // indexed by route id
	notAllowed fiber.Handler
}

func newPort(cfg config, be *backend, r *router) *port {
	p := &port{
		backend: be, router: r, iam: iam{keys: cfg.Keys, again: cfg.UploadTimeout}, region: cfg.Region,
		authorizer: &authorizer{rights: cfg.Rights, root: cfg.RootAccessKey, log: cfg.Logger},
		root:       middlewares.RootUserConfig{Access: cfg.RootAccessKey, Secret: cfg.RootSecretKey},
		services:   controllers.Services{MetricsManager: operations{}},
		cors:       middlewares.ApplyBucketCORS(be, middlewares.BucketFromPath, ""),
	}
	p.ctl = controllers.New(be, p.iam, nil, nil, operations{}, false, false, cfg.Domain, 0)
	for _, route := range r.routes {
		p.handlers = append(p.handlers, p.handler(p.serveFuncOf(route), route.action, p.middlewares(route)...))
	}
	p.notAllowed = p.handler(func(_ *port, c fiber.Ctx) (*controllers.Response, error) {
		return &controllers.Response{}, s3err.GetMethodNotAllowedErr(c.Method(), s3err.ResourceTypeService, nil)
	}, metrics.ActionUndetected)
	return p
}

func (p *port) handler(do serveFunc, action string, before ...fiber.Handler) fiber.Handler {
	bound := func(c fiber.Ctx) (*controllers.Response, error) { return do(p, c) }
	return controllers.ProcessHandlers(bound, action, &p.services, before...)
}

// serveFuncOf returns what serves a route.
func (p *port) serveFuncOf(r *route) serveFunc {
	switch {
	case r.own != nil:
		return ownOperation(r.action, r.own)
	case r.do != nil:
		return r.do
	}
	return failing(s3err.GetAPIError(s3err.ErrNotImplemented))
}

// ownOperation wraps an answer of our own as an operation of versitygw.
func ownOperation(action string, do ownAnswer) serveFunc {
	name := strings.TrimPrefix(action, actionPrefix)
	return func(p *port, c fiber.Ctx) (*controllers.Response, error) {
		t := p.backend.targetOf(c)
		document, status, err := do(p.backend, t)
		if err != nil {
			return &controllers.Response{}, p.backend.fail(t.request, t.bucket, name, err)
		}
		c.Response().Header.SetContentType(fiber.MIMEApplicationXML)
		return &controllers.Response{Data: document, MetaOpts: &controllers.MetaOptions{Status: status}}, nil
	}
}

// failing is an operation that returns err.
func failing(err error) serveFunc {
	return func(*port, fiber.Ctx) (*controllers.Response, error) { return &controllers.Response{}, err }
}

// middlewares returns versitygw's middlewares for a route, in versitygw's order.
func (p *port) middlewares(r *route) []fiber.Handler {
	if r.steps.has(open) {
		return nil
	}
	var all []fiber.Handler
	add := func(when bool, h fiber.Handler) {
		if when {
			all = append(all, h)
		}
	}
	s, streams := r.steps, r.steps.has(streamed)
	signed := !s.has(anonymous)
	cors := signed && !s.has(noCORS)
	add(!s.has(unnamed), middlewares.BucketObjectNameValidator())
	add(cors && s.has(corsFirst), p.cors)
	// No bucket is public, so this permission decides nothing.
	add(signed, middlewares.AuthorizePublicBucketAccess(p.backend, r.action, auth.DeleteBucketAction, auth.PermissionWrite, p.region, streams))
	if signed {
		all = append(all, p.verifySignature(s, streams)...)
	}
	add(signed, p.limitScope(r))
	add(s.has(checked|needsBody|needsSum|streamed), middlewares.VerifyChecksums(streams, s.has(needsBody), s.has(needsSum)))
	add(cors && !s.has(corsFirst), p.cors)
	add(!s.has(noACL), middlewares.ParseAcl(p.backend))
	return all
}

// limitScope refuses requests outside a session's resource if its credentials are limited to it. The fence checks the
// target of writes; limitScope checks what they read, such as the source of a copy.
func (p *port) limitScope(r *route) fiber.Handler {
	return func(c fiber.Ctx) error {
		s, leased := p.backend.sessionOf(c.RequestCtx())
		asked := p.backend.targetOf(c)
		if err := p.checkScope(c, r, asked, s, leased); err != nil {
			return p.backend.fail(asked.request, asked.bucket, r.action, err)
		}
		return nil
	}
}

func (p *port) checkScope(c fiber.Ctx, r *route, asked target, s credentials.Session, leased bool) error {
	if !p.authorizer.permits(asked.request, s, leased, r.action) {
		return asked.noRight()
	}
	if asked.lapsed(r.action) {
		return errExpired
	}
	if asked.reads() || revealing[r.action] {
		if err := p.backend.checkLease(asked.request); err != nil {
			return err
		}
	}
	if !leased || !s.Terms.Has(credentials.OwnKeys) && p.authorizer.readsAll(s) {
		return nil
	}
	source := ""
	if r.header == headerCopySource {
		source = c.Get(headerCopySource)
	}
	allowed, err := p.backend.readsOwn(asked, r.action, source)
	if err != nil || allowed {
		return err
	}
	if !s.Terms.Has(credentials.OwnKeys) { // its principal may read nothing else
		p.authorizer.logDenial(asked.request, right{s.Principal, access.S3Read, ""}, r.action)
	}
	return s3err.GetAPIError(s3err.ErrAccessDenied)
}

// dispatch passes a request to its route. The path is decoded and contains the bucket.
func (p *port) dispatch(c fiber.Ctx) error {
	found, param, refused := p.router.find(c, levelOf(c.Path()))
	switch {
	case refused:
		return answer(c, s3err.GetNotImplementedErr(param, ""))
	case found == nil:
		return p.notAllowed(c)
	}
	return p.handlers[found.id](c)
}

// router finds the route of a request.
type router struct {
	routes       []*route
	places       [methodCount][levels]compiled
	subresources map[string]bool // S3's, and those with a route
	others       map[string]bool // S3's without a read
}

// compiled is a place prepared for matching.
type compiled struct {
	strictness strictness
	params     map[string]uint64 // one bit per parameter that chooses a route; no bit for one that is only read
	candidates []candidate
}

// candidate is a route prepared for matching.
type candidate struct {
	*route

	id          int    // the index of the route among all
	need        uint64 // bits of the required parameters
	name, value string // a parameter that must have this value; name "": none
}

// strictness is the treatment of parameters that a place does not have.
type strictness uint8

const (
	ignoreUnknown      strictness = iota // except the sub-resources that no read has
	refuseSubresources                   // ignore others than S3's sub-resources, which would ask for something else
	refuseUnknown                        // the request would do something else
)

// methods are the methods with routes; the last one stands for all others.
const (
	methodGet = iota
	methodHead
	methodPut
	methodPost
	methodDelete
	methodOptions
	methodOther
	methodCount
)

func methodOf(name string) int {
	switch name {
	case http.MethodGet:
		return methodGet
	case http.MethodHead:
		return methodHead
	case http.MethodPut:
		return methodPut
	case http.MethodPost:
		return methodPost
	case http.MethodDelete:
		return methodDelete
	case http.MethodOptions:
		return methodOptions
	}
	return methodOther
}

var strictnessOf = [methodCount]strictness{
	methodGet: refuseSubresources, methodHead: refuseSubresources,
	methodPut: refuseUnknown, methodPost: refuseUnknown, methodDelete: refuseUnknown,
}

// newRouter prepares the places. others are S3's sub-resources that no read has.
func newRouter(places []place, others string) *router {
	all := &router{subresources: edge.Words(others), others: edge.Words(others)}
	for m := range all.places {
		for l := range all.places[m] {
			all.places[m][l].strictness = strictnessOf[m]
		}
	}
	for _, p := range places {
		c := &all.places[methodOf(p.method)][p.level]
		c.params = map[string]uint64{}
		for i := range p.routes {
			r := &p.routes[i]
			c.add(r, len(all.routes))
			all.routes = append(all.routes, r)
			if r.sub != "" {
				all.subresources[r.sub] = true
			}
		}
		for name := range strings.FieldsSeq(p.with) {
			c.params[name] |= 0
		}
	}
	return all
}

func (p *compiled) add(r *route, id int) {
	m := candidate{route: r, id: id}
	name, value, valued := strings.Cut(r.and, "=")
	if valued {
		m.name, m.value = name, value
	}
	for _, param := range []string{r.sub, name} {
		if param == "" {
			continue
		}
		if p.params[param] == 0 {
			p.params[param] = 1 << len(p.params)
		}
		m.need |= p.params[param]
	}
	p.candidates = append(p.candidates, m)
}

// levelOf returns what the path names: nothing if it is not a path, as in OPTIONS *.
func levelOf(path string) level {
	names, isPath := strings.CutPrefix(path, "/")
	bucket, key, _ := strings.Cut(names, "/")
	switch {
	case names == "":
		return ofService
	case bucket == "" || !isPath:
		return ofNothing
	case key == "":
		return ofBucket
	}
	return ofObject
}

// find returns the route of a request, nil for none. Or it refuses a parameter that is not served on this level; the
// parameter's name may be empty.
func (r *router) find(c fiber.Ctx, l level) (found *candidate, param string, refused bool) {
	place, query := &r.places[methodOf(c.Method())][l], c.Request().URI().QueryArgs()
	var have uint64
	if query.Len() > 0 {
		for name := range query.All() {
			bit, known := place.params[string(name)]
			if !known && r.refuses(place.strictness, string(name)) {
				return nil, strings.ToValidUTF8(string(name), "?"), true
			}
			have |= bit
		}
	}
	for i := range place.candidates {
		m := &place.candidates[i]
		if have&m.need == m.need && (m.name == "" || string(query.Peek(m.name)) == m.value) && (m.header == "" || c.Get(m.header) != "") {
			return m, "", false
		}
	}
	return nil, "", false
}

func (r *router) refuses(s strictness, param string) bool {
	switch s {
	case refuseUnknown:
		return !edge.Harmless(param)
	case refuseSubresources:
		return r.subresources[param]
	default:
		return r.others[param]
	}
}

// checkServed refuses a parameter that no route of the path's level has.
func (r *router) checkServed(c fiber.Ctx, path string) s3err.S3Error {
	l := levelOf(path)
	if _, param, refused := r.find(c, l); refused {
		return s3err.GetNotImplementedErr(param, "")
	}
	if c.Method() == fiber.MethodPut && l == ofObject && c.Request().URI().QueryArgs().Has("versionId") && !edge.WritesProperties(c) {
		return s3error.Error{Code: "InvalidArgument", Status: http.StatusBadRequest, Message: "This operation does not accept a version-id."}
	}
	return nil
}
