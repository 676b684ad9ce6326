package s3

import (
	"net/http"
	"strings"

	"github.com/gofiber/fiber/v3"
	"github.com/versity/versitygw/metrics"
	"github.com/versity/versitygw/s3api/controllers"
	"github.com/versity/versitygw/s3err"

	"github.com/fencegate/fencegate/gateway/s3/edge"
	"github.com/fencegate/fencegate/gateway/s3/s3error"
)

// manner is the treatment of parameters that a place does not have.
type manner uint8

const (
	lenient manner = iota // ignored, except those in notRead
	reads                 // ignored, except S3's sub-resources, which would ask for something else
	writes                // refused: the request would do something else
)

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

func (r route) served() bool { return r.do != nil || r.own != nil }

func (r route) operation() operation {
	switch {
	case r.own != nil:
		return ours(r.action, r.own)
	case r.do != nil:
		return r.do
	}
	return fails(s3err.GetAPIError(s3err.ErrNotImplemented))
}
