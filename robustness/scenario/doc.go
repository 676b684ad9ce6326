// Package scenario has the scenarios that the literature holds against
// distributed locks, each as a test by its name: once with a plain Redlock
// library, which loses a write by it, and once with fencegate, which does not.
//
// They come from two texts:
//
//   - Martin Kleppmann, "How to do distributed locking" (2016): a client that is
//     paused after it got the lock, a write that is late in the network, a clock
//     that jumps, replies that are read after a pause, and no fencing tokens.
//   - The Redis documentation, "Distributed Locks with Redis": a failover that
//     loses the lock, crash recovery without persistence, with fsync everysec and
//     with a delayed restart, the release of a lock that is another's by now, the
//     end of a client that holds one, and extensions without a cap.
//
// The plain library is redsync with its default settings; where a lease has to
// run out, its expiry is shorter. It guards an ordinary UPDATE by "I hold the
// lock", and asks how long it still does right before. The nodes are real
// redis-server processes and the row is in a real PostgreSQL.
//
// The guarantee of the tests: nothing in them depends on how fast the machine
// is. They wait for what has happened, and stop processes and connections where
// a scenario says "meanwhile".
package scenario
