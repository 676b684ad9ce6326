// Package primary decides which server is PostgreSQL: the host to which sessions and the gateway's own connections go,
// and whether that server is the one that the Redis nodes have recorded, or a later state of it. While it is not, no
// lease is granted: it may have forgotten fences.
//
// Of several hosts it chooses the one that the nodes have recorded. If they have no record, it chooses the first that
// satisfies target_session_attrs. It keeps a host until that fails.
package primary
