//go:build unix

// Command s3server is the S3 server of package s3posix: s3server FOLDER HOST:PORT.
package main

import (
	"errors"
	"fmt"
	"net"
	"os"

	"github.com/fencegate/fencegate/internal/testenv/s3posix"
)

func main() {
	if err := serve(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "s3server:", err)
		os.Exit(1)
	}
}

func serve(args []string) error {
	if len(args) != 2 {
		return errors.New("usage: s3server FOLDER HOST:PORT")
	}
	ln, err := net.Listen("tcp", args[1])
	if err != nil {
		return err
	}
	return s3posix.Serve(args[0], ln)
}
