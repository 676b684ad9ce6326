package fence

import "errors"

// Code lists how each of fencegate's interfaces reports one kind of refusal. The SQLSTATE is the same everywhere, so
// a PostgreSQL log line, an HTTP problem and an S3 error of the same refusal can be matched.
type Code struct {
	Err        error  // the sentinel
	SQLState   string // also the "code" of HTTP problems
	Problem    string // last part of the HTTP problem's type
	HTTPStatus int
	S3Code     string
	S3Status   int
	ExitCode   int    // of the command line
	Hint       string // what to do
}

// Codes is the one table of refusals. Treat it as read-only.
var Codes = []Code{
	{
		Err: ErrStale, SQLState: "ZF001", Problem: "stale", HTTPStatus: 412, S3Code: "StaleFencingToken", S3Status: 412, ExitCode: 76,
		Hint: "A newer holder has taken over. Stop; acquire the resource again and start from what it wrote.",
	},
	{
		Err: ErrNoGrant, SQLState: "ZF002", Problem: "no-grant", HTTPStatus: 428, S3Code: "MissingFencingToken", S3Status: 403, ExitCode: 77,
		Hint: "Acquire a lease and present its grant with the write.",
	},
	{
		Err: ErrNeverIssued, SQLState: "ZF003", Problem: "never-issued", HTTPStatus: 403, S3Code: "InvalidFencingToken", S3Status: 403, ExitCode: 77,
		Hint: "Present the token and seal exactly as they were issued, or acquire the resource again.",
	},
	{
		Err: ErrWrongResource, SQLState: "ZF004", Problem: "wrong-resource", HTTPStatus: 403, S3Code: "WrongFencingResource", S3Status: 403, ExitCode: 77,
		Hint: "Acquire the resource that the write needs.",
	},
	{
		Err: ErrUndrained, SQLState: "ZF005", Problem: "undrained", HTTPStatus: 503, S3Code: "ServiceUnavailable", S3Status: 503, ExitCode: 69,
		Hint: "End the transactions that still hold the resource, then acquire again.",
	},
}

// endedHint is the hint of [ErrStale] when the lease has ended.
const endedHint = "Acquire the resource again and start from what is there then."

// CodeOf finds the refusal in err's chain; ok is false if there is none. The hint is the one for err.
func CodeOf(err error) (code Code, ok bool) {
	for _, c := range Codes {
		if errors.Is(err, c.Err) {
			var stale *StaleError
			if errors.As(err, &stale) && stale.Ended {
				c.Hint = endedHint
			}
			return c, true
		}
	}
	return Code{}, false
}
