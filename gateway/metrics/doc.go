// Package metrics keeps what /metrics of a gateway serves, in a registry of its own. Parts that have metrics declare an
// interface, which a type of this package implements; the rest is read when it is scraped.
package metrics
