//go:build unix

// Package s3posix runs versitygw's S3 server on a folder, for tests: a real S3 service in its own process, which can be
// stopped in the middle.
//
//	func TestMain(m *testing.M) {
//		s3posix.RunIfAsked()
//		os.Exit(m.Run())
//	}
//	…
//	server := s3posix.Start(t)
//
// The command s3server in a subfolder is the same server for other programs.
package s3posix

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"reflect"

	"github.com/gofiber/fiber/v3"
	"github.com/versity/versitygw/auth"
	"github.com/versity/versitygw/backend/meta"
	"github.com/versity/versitygw/backend/posix"
	"github.com/versity/versitygw/s3api"
	"github.com/versity/versitygw/s3api/middlewares"
)

// The server's credentials and bucket.
const (
	Access = "upstream"
	Secret = "upstream-secret"
	Bucket = "blobs"
)

// Data is the folder, below a server's folder, that holds the objects of [Bucket].
func Data(folder string) string { return filepath.Join(folder, "data", Bucket) }

// Serve runs the server on the folder until the process ends.
func Serve(folder string, ln net.Listener) error {
	data, sidecar := filepath.Join(folder, "data"), filepath.Join(folder, "meta")
	if err := errors.Join(os.MkdirAll(Data(folder), 0o700), os.MkdirAll(sidecar, 0o700)); err != nil {
		return err
	}
	attributes, err := meta.NewSideCar(sidecar)
	if err != nil {
		return err
	}
	back, err := posix.New(data, attributes, posix.PosixOpts{SideCarDir: sidecar})
	if err != nil {
		return err
	}
	root := middlewares.RootUserConfig{Access: Access, Secret: Secret}
	iam := auth.NewIAMServiceSingle(auth.Account{Access: Access, Secret: Secret, Role: auth.RoleAdmin})
	front, err := s3api.New(back, root, "us-east-1", iam, nil, nil, nil, nil, s3api.WithQuiet(), s3api.WithKeepAlive(), s3api.WithConcurrencyLimiter(4096, 1024))
	if err != nil {
		return err
	}
	// The exported API listens only on addresses that it opens itself.
	app := (*fiber.App)(reflect.ValueOf(front).Elem().FieldByName("app").UnsafePointer())
	return app.Listener(ln, fiber.ListenConfig{DisableStartupMessage: true})
}
