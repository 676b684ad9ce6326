// Package s3error has the errors of the S3 port that S3 does not define.
package s3error
