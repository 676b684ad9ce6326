// Command fencegate is a fencing-token gateway in front of PostgreSQL and object
// storage, and the tools around it. See `fencegate --help`.
package main

import (
	"context"
	"os"
)

func main() {
	os.Exit(execute(context.Background(), env{
		args:   os.Args[1:],
		stdin:  os.Stdin,
		stdout: os.Stdout,
		stderr: os.Stderr,
		lookup: os.LookupEnv,
	}))
}
