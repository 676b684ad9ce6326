// Package s3error has the errors of the S3 port that S3 itself has not.
package s3error
