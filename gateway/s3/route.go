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

// place is the routes of one method on one level, in the order in which they are tried.
type place struct {
	method string
	level  level
	with   string // parameters that its routes read beside those that choose them
	routes []route
}

// route is one operation, and what of a request chooses it.
type route struct {
	sub    string    // S3's sub-resource, a parameter; none: the place itself
	and    string    // another parameter that must be there; with =VALUE: that has this value
	header string    // a header that must be there
	action string    // versitygw's name of the operation
	do     operation // of versitygw, or in its form
	own    ownAnswer // or of our own. Without any, the answer is NotImplemented
	steps  steps
}

// ctl has versitygw's operations; they call the back end.
type ctl = controllers.S3ApiController

// operation does what a route is for.
type operation func(*port, fiber.Ctx) (*controllers.Response, error)

// steps say in what a route differs before its operation. Without any, the request must be signed, its body's
// checksum is that of the header X-Amz-Content-Sha256, and the bucket's CORS rules apply.
type steps uint16

const (
	checked     steps = 1 << iota // the body's other checksums hold, if there are any
	needsBody                     // checked, and the body is not empty
	needsSum                      // checked, and there is a checksum
	streamed                      // the operation reads the body as it comes
	form                          // the body is a browser's form, which is signed itself
	sumOptional                   // without X-Amz-Content-Sha256, too
	anyRegion                     // signed for this region, or for the default one
	corsFirst                     // CORS rules apply to refusals, too
	noCORS
	noACL     // the bucket may be missing, or is none
	unnamed   // there is no name to look at
	anonymous // by anybody: CORS preflight
	open      // by anybody, and none of the above
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

	routes     []fiber.Handler // by the routes' ids
	notAllowed fiber.Handler
}

// ownAnswer is an operation of our own, for what versitygw knows and does not do, or not as it should. The first result
// is the answer's document; nil for none.
type ownAnswer func(*backend, addressed) (document any, status int, err error)

const headerCopySource = "X-Amz-Copy-Source"
