// Package scenario tests the scenarios that the literature holds against distributed locks, each as a test by its name:
// once with a plain Redlock library, which loses a write in most of them, and once with fencegate, which loses none.
//
// They come from two texts:
//
//   - Martin Kleppmann, "How to do distributed locking" (2016): a client that is
//     paused after it got the lock, a write that is late in the network, a clock
//     that jumps, replies that are read after a pause, and no fencing tokens.
//   - The Redis documentation, "Distributed Locks with Redis": a failover that
//     loses the lock, crash recovery without persistence, with fsync everysec and
//     with a delayed restart, the release of a lock that another has acquired since, the
//     end of a client that holds one, and extensions without a cap.
//
// The plain library is redsync with its default settings; if a lease has to expire, its expiry is shorter. It guards an
// ordinary UPDATE, and checks right before it whether the lock is still held. The nodes are real redis-server processes
// and the row is in a real PostgreSQL.
//
// The guarantee of the tests: their results do not depend on the machine's speed. They wait for events, and stop
// processes and connections while another step of a scenario happens.
package scenario
