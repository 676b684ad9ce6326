package s3

import (
	"github.com/gofiber/fiber/v3"
	"github.com/versity/versitygw/s3api/controllers"
	"github.com/versity/versitygw/s3api/middlewares"
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

// ownAnswer is an operation of our own, for what versitygw parses but does not implement, or not as needed. document is
// the answer's document; nil for none.
type ownAnswer func(*backend, addressed) (document any, status int, err error)

const headerCopySource = "X-Amz-Copy-Source"
