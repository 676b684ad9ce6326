// Package haproxy has no code: it holds a configuration of HAProxy, and the test that shows what clients see while
// gateways behind it are killed, drained and paused. See docs/balancer.md.
package haproxy
