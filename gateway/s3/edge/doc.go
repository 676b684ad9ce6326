// Package edge stands between the network and the S3 operations: it bounds what a
// request may cost before anybody knows who sent it, and refuses what versitygw
// would read in another way than its sender or a proxy before it.
//
// The guarantee: no client holds more than its connections, a stalled one ends, and
// of a request that is refused nothing reaches an operation. It knows no grant and
// no database.
//
//	plain := &edge.Listener{Listener: ln, Stall: time.Minute, Limit: 4096, Conns: &conns, Log: log}
//	edge.Guard(app.Server(), edge.Timeouts{Header: 10 * time.Second, Upload: 12 * time.Hour, Stall: time.Minute}, log)
package edge
