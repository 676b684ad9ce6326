//go:build unix

package s3

import "testing"

// A key follows a bucket, and a bucket a slash: no other path reaches a bucket's operations.
func TestAPathNamesTheServiceABucketAnObjectOrNothing(t *testing.T) {
	t.Parallel()
	for path, want := range map[string]level{
		"/": ofService, "": ofService, "/b": ofBucket, "/b/": ofBucket, "/b/k": ofObject, "/b//": ofObject, "/b/k/": ofObject,
		"//": ofNothing, "//k": ofNothing, "*": ofNothing, "b": ofNothing,
	} {
		if got := levelOf(path); got != want {
			t.Errorf("%q: got %d, want %d", path, got, want)
		}
	}
}
