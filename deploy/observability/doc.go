// Package observability has no code: alert rules and a dashboard, and the tests that show that
// each alert fires and each expression has an answer. See README.md.
package observability
