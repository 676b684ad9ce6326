// Package wire has the JSON requests and answers of the gateway's HTTP API, each defined once. Package client sends
// them and gateway/api answers them. For other languages the API is described at /openapi.json.
//
// Fencing tokens, and the SQL types int8 and numeric, are strings, because JSON readers hold numbers as doubles.
// Durations in requests are text such as "30s"; those in answers are milliseconds.
package wire
