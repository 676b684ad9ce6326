// Package edge stands between the network and the S3 operations. It bounds the cost of a request before authentication,
// and refuses requests that versitygw would parse differently than their sender or a proxy.
//
// The guarantee: no client holds more than its connections, a stalled one ends, and nothing of a refused request
// reaches an operation. The package knows no grants and no database.
//
//	plain := &edge.Listener{Listener: ln, Stall: time.Minute, Limit: 4096, Conns: &conns, Log: log}
//	edge.Guard(app.Server(), edge.Timeouts{Header: 10 * time.Second, Upload: 12 * time.Hour, Stall: time.Minute}, log)
package edge
