package s3

import (
	"errors"
	"net/http"

	"github.com/versity/versitygw/metrics"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/gateway/s3/s3error"
)

// repeated are the operations that answer a request with the result of its earlier attempt.
var repeated = map[string]bool{
	metrics.ActionPutObject: true, metrics.ActionCopyObject: true, metrics.ActionDeleteObject: true, metrics.ActionDeleteObjects: true,
	metrics.ActionPutObjectTagging: true, metrics.ActionDeleteObjectTagging: true,
	metrics.ActionCreateMultipartUpload: true, metrics.ActionUploadPart: true, metrics.ActionUploadPartCopy: true,
	metrics.ActionCompleteMultipartUpload: true, metrics.ActionAbortMultipartUpload: true,
}

// lapse is the end of the credentials that signed a request.
type lapse struct {
	undecided error // not nil: an earlier attempt may still take effect
}

// over reports whether expired credentials signed a request that cannot be the repetition of a write.
func (r request) over(action string) bool { return r.expired != nil && !repeated[action] }

// noSeal is the hash of no seal: no fence records it.
var noSeal = make([]byte, 32)

// onlyRepeat prepares a write under expired credentials. The fence refuses its grant, whatever it has recorded. So the
// write is answered if an earlier attempt has done it, and changes nothing. An attempt in progress under the same grant
// is refused too if the lease is over. Where no fence is asked, the write is refused.
func (b *backend) onlyRepeat(r *request, bucket, key string) error {
	r.grant.SealHash = noSeal
	rule, err := b.catalog.RuleOf(b.base, bucket, key)
	if err == nil && rule.Unchecked() {
		err = errExpired
	}
	if err == nil {
		r.expired.undecided = b.held.settle(b.base, r.grant)
	}
	return err
}

// answer returns what a client with expired credentials learns of an error: that its grant is superseded, or that its
// request could not be judged. Other errors would tell what is stored.
func (l *lapse) answer(err error) error {
	status := 0
	if code, ok := fence.CodeOf(err); ok {
		status = code.S3Status
	} else if e := s3error.Of(err, ""); e != nil {
		status = e.StatusCode()
	}
	switch {
	case status == 0 || status >= http.StatusInternalServerError || errors.Is(err, fence.ErrStale) || errors.Is(err, fence.ErrUnknown):
		return err
	case l.undecided != nil:
		return l.undecided
	}
	return errExpired
}
