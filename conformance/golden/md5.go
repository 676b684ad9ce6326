package main

import (
	"crypto/md5" //nolint:gosec // ETags, Content-MD5 and PostgreSQL's older passwords are MD5
	"encoding/base64"
	"encoding/hex"
)

// sumOf is the text's MD5 in the form of an ETag.
func sumOf(s string) string {
	sum := md5.Sum([]byte(s)) //nolint:gosec // as above
	return hex.EncodeToString(sum[:])
}

// md5Of is the text's MD5 in the form of Content-MD5.
func md5Of(s string) string {
	sum, _ := hex.DecodeString(sumOf(s)) // never fails
	return base64.StdEncoding.EncodeToString(sum)
}
