package main

import (
	"context"
	"os"
	"os/signal"

	"github.com/versity/versitygw/auth"
	"github.com/versity/versitygw/backend/meta"
	"github.com/versity/versitygw/backend/posix"
	"github.com/versity/versitygw/s3api"
	"github.com/versity/versitygw/s3api/middlewares"

	"github.com/fencegate/fencegate/gateway/s3/credentials"
	"github.com/fencegate/fencegate/internal/s3stack"
)

// serveAs runs a server until it is interrupted.
func serveAs(name string) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	written, err := profiled(name)
	if err != nil {
		return err
	}
	defer written()
	if name == "versitygw" {
		return servePosix(ctx)
	}
	srv, err := s3stack.StartServer(ctx, s3stack.ServerConfig{
		PostgresURL: os.Getenv(envPostgres), Blobs: os.Getenv(envFolder), MasterKey: os.Getenv(envKey), Addr: os.Getenv(envAddr),
		Root: credentials.Credentials{AccessKeyID: os.Getenv(envAccess), SecretAccessKey: os.Getenv(envSecret)},
	})
	if err != nil {
		return err
	}
	<-ctx.Done()
	return srv.Close()
}

// servePosix runs versitygw with its own command's settings.
func servePosix(ctx context.Context) error {
	be, err := posix.New(os.Getenv(envFolder), meta.XattrMeta{}, posix.PosixOpts{NewDirPerm: 0o755, Concurrency: 5000})
	if err != nil {
		return err
	}
	root := middlewares.RootUserConfig{Access: os.Getenv(envAccess), Secret: os.Getenv(envSecret)}
	iam := auth.NewIAMServiceSingle(auth.Account{Access: root.Access, Secret: root.Secret, Role: auth.RoleAdmin})
	srv, err := s3api.New(be, root, "us-east-1", iam, nil, nil, nil, nil, s3api.WithQuiet(), s3api.WithKeepAlive(), s3api.WithConcurrencyLimiter(100_000, 100_000))
	if err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- srv.ServeMultiPort([]string{os.Getenv(envAddr)}) }()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
		return nil
	}
}
