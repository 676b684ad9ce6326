package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"time"

	"github.com/fencegate/fencegate/gateway/objects"
	"github.com/fencegate/fencegate/internal/s3stack"
)

const onceBucket = "written-once"

// onceWanted is boto3's expected result for a bucket whose objects are written once, under a current grant.
const onceWanted = "write\tok\noverwrite\t403 AccessDenied\ndelete\t403 AccessDenied\nread\tok\nwrite another\tok\n"

// runOnce lets boto3 write, overwrite, delete and read there. It returns 1 if an outcome is unexpected.
func (w *world) runOnce(ctx context.Context, srv *s3stack.Server) (wrong int, err error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if _, err := srv.Catalog().EnsureBucket(ctx, onceBucket, objects.BucketRule()); err != nil {
		return 0, err
	}
	if err := srv.Catalog().SetRetention(ctx, onceBucket, time.Hour); err != nil {
		return 0, err
	}
	if err := w.db.Arm(ctx, onceBucket, 1); err != nil {
		return 0, err
	}
	keys, err := srv.Issue(onceBucket, 1)
	if err != nil {
		return 0, err
	}
	cmd := exec.CommandContext(ctx, "/usr/bin/python3", "clients/once_boto3.py", onceBucket)
	cmd.Env, cmd.Stderr = clientEnv(srv.Addr, "once/", keys), os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return 0, fmt.Errorf("boto3 at a bucket that is written once: %w: %s", err, out)
	}
	outcome := "overwrite and delete are 403 AccessDenied, the object stays"
	if string(out) != onceWanted {
		outcome = fmt.Sprintf("got %q, wanted %q", out, onceWanted)
		wrong++
	}
	fmt.Printf("boto3, written once: %s\n", outcome)
	return wrong, nil
}
