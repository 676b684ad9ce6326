// Package api is the gateway's HTTP API: leases, and the credentials and fenced SQL that go with them, for clients in
// any language.
//
// The guarantee: the API decides nothing about a write. It returns what the lock and the fence grant, and a statement
// sent through it runs in one transaction with the fence's check, or not at all. It keeps no state: a lease's handle is
// authenticated and carries what a replica needs to renew or release the lease. It never carries the seal.
//
//	srv, err := api.New(api.Config{Leases: leases, Fences: fences, Handles: keys})
//	if err != nil {
//		return err // *fence.InvalidError: names the field
//	}
//	ln, err := net.Listen("tcp", "127.0.0.1:7070")
//	if err != nil {
//		return err
//	}
//	return srv.Serve(ctx, ln)
//
// Requests are strict JSON: an unknown field, data after the value, a body over 1 MiB and text that is not UTF-8 are
// refused. Fencing tokens, and the SQL types int8 and numeric, are strings, because many JSON parsers store numbers as
// doubles. Errors are problem details (RFC 9457), whose "code" is the SQLSTATE that PostgreSQL reports for the same
// refusal, or a word. The whole API is described at /openapi.json.
package api
