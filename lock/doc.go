// Package lock grants leases on named resources over independent Redis nodes, with reliable fencing tokens.
//
// The guarantee, with no assumption about time: two successful acquisitions of one resource have different tokens,
// and if one completed before the other began, its token is lower. With an Armer ([leasing.Armer]) this holds whatever data Redis
// loses. Without one, a node that lost its data or was restarted grants nothing until it has been admitted again. A
// resource has only one holder at a time as long as clocks run at nearly the same speed, as with every lease; the
// fence makes the exception harmless.
//
//	l, err := fenced.New(ctx, pool, clients...) // go-redis clients and a pgx pool
//	if err != nil {
//		return err
//	}
//	defer l.Close()
//	lease, err := l.Acquire(ctx, "orders/1001", lock.WithTTL(30*time.Second))
//	if err != nil {
//		return err // errors.Is(err, lock.ErrHeld), lock.ErrNoQuorum, …
//	}
//	defer lease.Release(ctx)
//	grant, err := lease.Grant() // present it with each write; fails once the lease is over
//
// Package fenced makes a Locker of what a program has; [New] takes each part. Package admin is what operators need.
//
// The locks follow Redlock (Salvatore Sanfilippo, "Distributed Locks with Redis"): a majority of nodes, each with a
// time to live, and a validity that counts from before the first message. The tokens do not, because the highest of
// the nodes' counters is neither unique nor rising. An acquisition increments the counters on a majority (phase 1).
// Unless a majority already agrees on the highest counter, it then raises the counters of a majority to it while the
// lock is still its own (phase 2). With an Armer, a compare-and-set in the database decides instead (arming).
//
// A node's marker, base and counters are one hash, so that it cannot lose one without the other. The granting scripts
// are bound to one incarnation of the node: only admission loads them, and a restart removes them.
package lock
