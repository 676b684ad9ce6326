package s3

import (

	//nolint:gosec // S3 defines the ETag as the MD5 of the bytes
	//nolint:gosec // S3 defines the ETag of a multipart object by the MD5 of its parts

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
	do     operation // versitygw's, or in its form
	own    ownAnswer // our own. Without either the answer is NotImplemented
	steps  steps
}

// ctl holds versitygw's operations, which call the backend.
type ctl = controllers.S3ApiController

// operation serves a route.
type operation func(*port, fiber.Ctx) (*controllers.Response, error)

// ownAnswer is an operation of our own, for what versitygw parses but does not implement, or not as needed. document is
// the answer's document; nil for none.
type ownAnswer func(*backend, addressed) (document any, status int, err error)

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

	backend  *backend
	iam      iam
	root     middlewares.RootUserConfig
	region   string
	services controllers.Services
	cors     fiber.Handler

	routes     []fiber.Handler // indexed by route id
	notAllowed fiber.Handler
}

// serve creates the handlers of the routes.
func (p *port) serve() {
	for _, place := range places {
		for _, r := range place.routes {
			p.routes = append(p.routes, p.handler(r.operation(), r.action, p.handlers(r)...))
		}
	}
	p.notAllowed = p.handler(func(_ *port, c fiber.Ctx) (*controllers.Response, error) {
		return &controllers.Response{}, s3err.GetMethodNotAllowedErr(c.Method(), s3err.ResourceTypeService, nil)
	}, metrics.ActionUndetected)
}

func (p *port) handler(do operation, action string, before ...fiber.Handler) fiber.Handler {
	bound := func(c fiber.Ctx) (*controllers.Response, error) { return do(p, c) }
	return controllers.ProcessHandlers(bound, action, &p.services, before...)
}

func (r route) operation() operation {
	switch {
	case r.own != nil:
		return ours(r.action, r.own)
	case r.do != nil:
		return r.do
	}
	return fails(s3err.GetAPIError(s3err.ErrNotImplemented))
}

// ours wraps an answer of our own as an operation of versitygw.
func ours(action string, do ownAnswer) operation {
	name := strings.TrimPrefix(action, actionPrefix)
	return func(p *port, c fiber.Ctx) (*controllers.Response, error) {
		a := p.backend.addressedBy(c)
		document, status, err := do(p.backend, a)
		if err != nil {
			return &controllers.Response{}, p.backend.fail(a.request, a.bucket, name, err)
		}
		c.Response().Header.SetContentType(fiber.MIMEApplicationXML)
		return &controllers.Response{Data: document, MetaOpts: &controllers.MetaOptions{Status: status}}, nil
	}
}

// handlers returns versitygw's middlewares for a route, in versitygw's order.
func (p *port) handlers(r route) []fiber.Handler {
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
	add(signed, middlewares.VerifyPresignedV4Signature(p.root, p.iam, p.region, streams))
	add(signed, middlewares.VerifyV4Signature(p.root, p.iam, p.region, streams, !s.has(sumOptional), s.has(anyRegion)))
	add(signed, p.within(r))
	add(s.has(checked|needsBody|needsSum|streamed), middlewares.VerifyChecksums(streams, s.has(needsBody), s.has(needsSum)))
	add(cors && !s.has(corsFirst), p.cors)
	add(!s.has(noACL), middlewares.ParseAcl(p.backend))
	return all
}

// within refuses requests outside a session's resource if its credentials are limited to it. The fence checks the
// target of writes; within checks what they read, such as the source of a copy.
func (p *port) within(r route) fiber.Handler {
	return func(c fiber.Ctx) error {
		s, leased := p.backend.sessionOf(c.RequestCtx())
		asked := p.backend.addressedBy(c)
		if !p.backend.permitted(asked.request, s, leased, r.action) {
			return p.backend.fail(asked.request, asked.bucket, r.action, asked.noRight())
		}
		if asked.over(r.action) {
			return p.backend.fail(asked.request, asked.bucket, r.action, errExpired)
		}
		reads := c.Method() == http.MethodGet || c.Method() == http.MethodHead || tells[r.action]
		if reads {
			if err := p.backend.goesOn(asked.request); err != nil {
				return p.backend.fail(asked.request, asked.bucket, r.action, err)
			}
		}
		if !leased || !s.Terms.Has(credentials.OwnKeys) && p.backend.cfg.readsAll(s) {
			return nil
		}
		allowed, err := p.backend.ownReads(c, r, asked)
		if err == nil && !allowed {
			if !s.Terms.Has(credentials.OwnKeys) { // its principal may read nothing else
				p.backend.tellDenied(asked.request, right{s.Principal, access.S3Read, ""}, r.action)
			}
			err = s3err.GetAPIError(s3err.ErrAccessDenied)
		}
		if err != nil {
			return p.backend.fail(asked.request, asked.bucket, r.action, err)
		}
		return nil
	}
}

// tells are writes of objects that change nothing, so the fence does not check them. Their answers reveal whether a key
// exists.
var tells = map[string]bool{
	metrics.ActionPutObjectAcl: true, metrics.ActionPutObjectRetention: true, metrics.ActionPutObjectLegalHold: true, metrics.ActionRestoreObject: true,
}

// listed are the operations that list keys below a prefix.
var listed = map[string]bool{
	metrics.ActionListObjects: true, metrics.ActionListObjectsV2: true, metrics.ActionListObjectVersions: true, metrics.ActionListMultipartUploads: true,
}

// dispatch passes a request to its route. The path is decoded and contains the bucket.
func (p *port) dispatch(c fiber.Ctx) error {
	found, param, refused := find(c, levelOf(c.Path()))
	switch {
	case refused:
		return answer(c, s3err.GetNotImplementedErr(param, ""))
	case found == nil:
		return p.notAllowed(c)
	}
	return p.routes[found.id](c)
}

// manner is the treatment of parameters that a place does not have.
type manner uint8

const (
	lenient manner = iota // ignored, except those in notRead
	reads                 // ignored, except S3's sub-resources, which would ask for something else
	writes                // refused: the request would do something else
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

var manners = [methodCount]manner{methodGet: reads, methodHead: reads, methodPut: writes, methodPost: writes, methodDelete: writes}

// compiled is a place prepared for matching.
type compiled struct {
	manner manner
	params map[string]uint64 // one bit per parameter that chooses a route; no bit for one that is only read
	routes []match
}

// match is a route prepared for matching.
type match struct {
	*route

	id          int    // the index of the route among all
	need        uint64 // bits of the required parameters
	name, value string // a parameter that must have this value; name "": none
}

// The tables in which a request finds its route.
var (
	table        = compile(places)
	subresources = allSubresources(places) // S3's sub-resources, and those with a route
	unread       = edge.Words(notRead)
)

func compile(places []place) (all [methodCount][levels]compiled) {
	for m := range all {
		for l := range all[m] {
			all[m][l].manner = manners[m]
		}
	}
	id := 0
	for _, p := range places {
		c := &all[methodOf(p.method)][p.level]
		c.params = map[string]uint64{}
		for i := range p.routes {
			c.add(&p.routes[i], id)
			id++
		}
		for name := range strings.FieldsSeq(p.with) {
			c.params[name] |= 0
		}
	}
	return all
}

func allSubresources(places []place) map[string]bool {
	all := edge.Words(notRead)
	for _, p := range places {
		for _, r := range p.routes {
			if r.sub != "" {
				all[r.sub] = true
			}
		}
	}
	return all
}

func (p *compiled) add(r *route, id int) {
	m := match{route: r, id: id}
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
	p.routes = append(p.routes, m)
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
func find(c fiber.Ctx, l level) (found *match, param string, refused bool) {
	place, query := &table[methodOf(c.Method())][l], c.Request().URI().QueryArgs()
	var have uint64
	if query.Len() > 0 {
		for name := range query.All() {
			bit, known := place.params[string(name)]
			if !known && place.manner.refuses(name) {
				return nil, strings.ToValidUTF8(string(name), "?"), true
			}
			have |= bit
		}
	}
	for i := range place.routes {
		m := &place.routes[i]
		if have&m.need == m.need && (m.name == "" || string(query.Peek(m.name)) == m.value) && (m.header == "" || c.Get(m.header) != "") {
			return m, "", false
		}
	}
	return nil, "", false
}

func (m manner) refuses(param []byte) bool {
	switch m {
	case writes:
		return !edge.Harmless(string(param))
	case reads:
		return subresources[string(param)]
	default:
		return unread[string(param)]
	}
}

// checkServed refuses a parameter that no route of the path's level has.
func checkServed(c fiber.Ctx, path string) s3err.S3Error {
	l := levelOf(path)
	if _, param, refused := find(c, l); refused {
		return s3err.GetNotImplementedErr(param, "")
	}
	if c.Method() == fiber.MethodPut && l == ofObject && c.Request().URI().QueryArgs().Has("versionId") && !edge.OfVersions(c) {
		return s3error.Error{Code: "InvalidArgument", Status: http.StatusBadRequest, Message: "This operation does not accept a version-id."}
	}
	return nil
}
