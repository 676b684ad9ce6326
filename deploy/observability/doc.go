// Package observability has no code: it holds alert rules and a dashboard, and the tests that each alert fires and each
// expression returns data. See README.md.
package observability
