// Command fencegate is a fencing-token gateway in front of PostgreSQL and object storage, with its tools. See
// `fencegate --help`.
package main

import (
	"context"
	"os"

	"github.com/redis/go-redis/v9"
)

func main() {
	// the client would repeat on standard error what the commands' errors and logs say
	redis.SetLogger(silent{})
	os.Exit(execute(context.Background(), env{
		args:    os.Args[1:],
		stdin:   os.Stdin,
		stdout:  os.Stdout,
		stderr:  os.Stderr,
		lookup:  os.LookupEnv,
		environ: os.Environ,
	}))
}
