// Package wire has what the gateway's HTTP API and its clients say to each other:
// each request and answer once, as JSON. Package client speaks it, and gateway/api
// answers it; for other languages it is described at /openapi.json.
//
// Fencing tokens, and the SQL types int8 and numeric, travel as strings, because
// JSON's readers hold numbers as doubles. Durations of requests are text such as
// "30s"; those of answers are milliseconds.
package wire
