package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"

	"github.com/spf13/cobra"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/s3fence"
)

func newObjectsStage(e env) *cobra.Command {
	var contentType string
	var create bool
	cmd := &cobra.Command{
		Use:   "stage BUCKET KEY FILE",
		Short: "Upload a file that is invisible until a transaction publishes it with its rows; print the stage's id",
		Long: `Upload a file that is invisible until a transaction publishes it together with rows, and print
the stage's id. The S3 port and the lease's credentials come from the environment, as "fencegate run"
provides them. The transaction, under the same grant:

  BEGIN;
  INSERT INTO reports VALUES (…);
  SELECT * FROM fence.publish('ID');
  COMMIT;

A file whose size or time changes during the upload is refused. The gateway's sweep deletes unpublished files after
a day.`,
		Example: `  fencegate run --resource reports/2026-11.csv -- sh -c 'id=$(fencegate objects stage reports 2026-11.csv out.csv) && psql -c "…"'`,
		Args:    cobra.ExactArgs(3),
		RunE: func(cmd *cobra.Command, args []string) error {
			client, err := s3fence.New(s3fence.FromEnv(e.lookup))
			if err != nil {
				return usage(fmt.Errorf("%w; run it under fencegate run, which sets AWS_ENDPOINT_URL_S3 and the lease's credentials", err))
			}
			file, opened, err := openRegular(args[2])
			if err != nil {
				return err
			}
			defer file.Close()
			var opts []s3fence.Option
			if contentType != "" {
				opts = append(opts, s3fence.ContentType(contentType))
			}
			if create {
				opts = append(opts, s3fence.IfNoneMatch())
			}
			staged, err := client.Stage(cmd.Context(), args[0], args[1], file, opened.Size(), opts...)
			if err != nil {
				return stageError(err, args[0], args[1])
			}
			if err := unchanged(file, opened); err != nil {
				return err // without its id, what was staged can't be published
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), staged.ID)
			return err
		},
	}
	cmd.Flags().StringVar(&contentType, "content-type", "", "Content-Type of the object")
	cmd.Flags().BoolVar(&create, "if-none-match", false, "let publishing fail if the key exists by then")
	return cmd
}

// openRegular opens a file for an upload, and returns its state for [unchanged]. It checks the file's type first: opening
// a named pipe would wait for its writer.
func openRegular(path string) (f *os.File, info fs.FileInfo, err error) {
	info, err = os.Stat(path)
	if err == nil && !info.Mode().IsRegular() {
		err = &fence.InvalidError{Field: "file", Reason: fmt.Sprintf("%q is not a regular file", path)}
	}
	if err != nil {
		return nil, nil, err
	}
	if f, err = os.Open(path); err != nil {
		return nil, nil, err
	}
	if info, err = f.Stat(); err != nil {
		return nil, nil, errors.Join(err, f.Close())
	}
	return f, info, nil
}

// unchanged returns an error if a file that was read no longer has the size or the time that it was opened with.
func unchanged(f *os.File, opened fs.FileInfo) error {
	now, err := f.Stat()
	if err != nil {
		return err
	}
	if now.Size() != opened.Size() || !now.ModTime().Equal(opened.ModTime()) {
		return fmt.Errorf("the size or time of %s changed while it was read; upload it again when nothing writes to it", f.Name())
	}
	return nil
}

// silentS3 is the hint if an S3 port does not answer.
const silentS3 = "see whether AWS_ENDPOINT_URL_S3 is the gateway's S3 port, as fencegate run sets it"

// The S3 port's code for expired credentials, and the hint.
const (
	codeExpired = "ExpiredToken"
	leaseOver   = "the lease is over, or was acquired more than a day ago: run it again under a new one"
)

// stageError adds the exit code of an S3 port that did not answer, can't serve, or refuses expired credentials.
func stageError(err error, bucket, key string) error {
	refused, answered := errors.AsType[*s3fence.StageError](err)
	switch {
	case errors.Is(err, context.Canceled):
		return err
	case errors.Is(err, fence.ErrUnknown):
		return withHint(err, exitUnavailable, fmt.Sprintf("the upload may have been done, but without its id nothing publishes it: stage the file again; ask with `fencegate objects staged %s %s` what is staged", bucket, key))
	case answered && refused.Status >= http.StatusBadGateway: // 502 to 504; 503's message names the unavailable part
		return withHint(err, exitUnavailable, "")
	case answered && refused.Code == codeExpired:
		return withHint(err, exitLost, leaseOver)
	case errors.As(err, new(*net.OpError)):
		return withHint(err, exitUnavailable, silentS3)
	}
	return err
}
