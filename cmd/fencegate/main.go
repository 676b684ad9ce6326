// Command fencegate is a fencing-token gateway in front of PostgreSQL and object
// storage, and the tools around it. See `fencegate --help`.
package main

import (
	"context"
	"os"

	"github.com/redis/go-redis/v9"
)

func main() {
	redis.SetLogger(silent{}) // it would write to standard error what the commands' own errors and logs say
	os.Exit(execute(context.Background(), env{
		args:    os.Args[1:],
		stdin:   os.Stdin,
		stdout:  os.Stdout,
		stderr:  os.Stderr,
		lookup:  os.LookupEnv,
		environ: os.Environ,
	}))
}
