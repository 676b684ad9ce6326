/*
 * The change of a group's longest TTL in package lock, for the spin model checker, without time. A TTL is short (1) or long
 * (2). Claimed: while a quorum may hold locks of a long lease, no admitted node says that a quarantine may be short,
 * whatever two changes at a time, their deaths, and LOSSES of nodes do.
 *
 * A node has the longest TTL that it grants (G) and the longest that a lease may still have (Q). A lock of a long lease
 * ends at any time, and is over once a change has waited. A lost node forgets its limits or not; it is admitted with those
 * that one other admitted node tells, read before.
 *
 * A macro removes one safeguard each; every such run must fail:
 *   EARLY     a longer TTL is granted at the beginning of a change
 *   NOWAIT    a shorter one lowers Q without waiting
 *   NOVERIFY  it is not looked whether every node is admitted, and knows of this change, before its end
 *   NOCHANGE  a change ends on a node on which another one has begun
 *   OWN       a node is admitted with the value of who admits it
 * REACHED fails where a long lease is held after both changes have ended.
 */
#ifndef LOSSES
#define LOSSES 1
#endif
#define N 3
#define CHANGES 2
#define MIN(a, b) ((a) < (b) -> (a) : (b))
#define MAX(a, b) ((a) > (b) -> (a) : (b))

byte G[N], Q[N], change[N];     /* change: 1 or 2; 0: none */
byte inc[N];                    /* incarnation */
bool live[N] = true;            /* it is admitted */
bool held[N];                   /* a long lock may count, also on a lost node */
bool old[CHANGES * N];          /* it did when the change began to wait */
byte told[N];                   /* what a lost node is to be admitted with; 0: nothing was asked */
byte losses, ended;

#define QUORUM (held[0] + held[1] + held[2] >= 2)
#define SHORT(n) (live[n] && Q[n] < 2)
#define CLAIM assert(!QUORUM || !(SHORT(0) || SHORT(1) || SHORT(2)))

#ifdef REACHED
#define GRANTED assert(!QUORUM || ended < CHANGES)
#else
#define GRANTED skip
#endif
#ifdef OWN
#define TOLD(m) 5
#else
#define TOLD(m) (G[m] + 4 * Q[m])
#endif

#define GRANT(n) :: d_step { live[n] && G[n] == 2 && !held[n] -> held[n] = true; CLAIM; GRANTED }
#define EXPIRE(n) :: d_step { held[n] -> held[n] = false; old[n] = false; old[N + n] = false }
#define LOSE(n) :: d_step { losses < LOSSES && live[n] -> losses++; live[n] = false; G[n] = 0; Q[n] = 0; change[n] = 0; inc[n]++ }
#define RESTART(n) :: d_step { losses < LOSSES && live[n] -> losses++; live[n] = false }
#define ASK(n, m) :: d_step { !live[n] && live[m] && told[n] != TOLD(m) -> told[n] = TOLD(m) }
#define ADMIT(n) :: d_step { !live[n] && told[n] > 0 -> \
	G[n] = told[n] % 4; Q[n] = told[n] / 4; change[n] = 0; inc[n]++; live[n] = true; told[n] = 0; CLAIM }

active proctype Nodes() {
end:
	do
	GRANT(0) GRANT(1) GRANT(2)
	EXPIRE(0) EXPIRE(1) EXPIRE(2)
	LOSE(0) LOSE(1) LOSE(2)
	RESTART(0) RESTART(1) RESTART(2)
	ASK(0, 1) ASK(0, 2) ASK(1, 0) ASK(1, 2) ASK(2, 0) ASK(2, 1)
	ADMIT(0) ADMIT(1) ADMIT(2)
	od
}

#ifdef EARLY
#define LIMITED(g, ttl) ttl
#else
#define LIMITED(g, ttl) MIN(g, ttl)
#endif
#ifdef NOCHANGE
#define MINE(n) true
#else
#define MINE(n) (change[n] == id)
#endif

/* limit.lua, on a node that the step has not reached */
#define BEGIN(n) :: d_step { left & (1 << n) -> left = left - (1 << n); \
	if \
	:: inc[n] == saw[n] && G[n] > 0 -> change[n] = id; G[n] = LIMITED(G[n], ttl); Q[n] = MAX(Q[n], ttl); CLAIM \
	:: else -> ok = false \
	fi }
#define END(n) :: d_step { left & (1 << n) -> left = left - (1 << n); \
	if \
	:: inc[n] == saw[n] && G[n] > 0 && MINE(n) -> G[n] = ttl; Q[n] = ttl; CLAIM \
	:: else -> ok = false \
	fi }
#ifdef NOVERIFY
#define VERIFY(n)
#else
/* Locker.unchanged */
#define VERIFY(n) ok = ok && live[n] && inc[n] == saw[n] && change[n] == id;
#endif
#define FRESH(n) !old[(id - 1) * N + n]

/* A change may also die at any step. */
proctype Change(byte id, ttl) {
	byte left = 7, saw[N];
	bool ok = true;
	d_step { ok = live[0] && live[1] && live[2]; saw[0] = inc[0]; saw[1] = inc[1]; saw[2] = inc[2] }
	if
	:: ok
	:: else -> goto over
	fi;
	do
	BEGIN(0) BEGIN(1) BEGIN(2)
	:: left == 0 -> break
	od;
	VERIFY(0) VERIFY(1) VERIFY(2)
	if
	:: ok
	:: else -> goto over
	fi;
#ifndef NOWAIT
	if
	:: ttl == 1 ->
		d_step { old[(id - 1) * N] = held[0]; old[(id - 1) * N + 1] = held[1]; old[(id - 1) * N + 2] = held[2] }
		FRESH(0) && FRESH(1) && FRESH(2);
		VERIFY(0) VERIFY(1) VERIFY(2)
		if
		:: ok -> skip
		:: else -> goto over
		fi
	:: else
	fi;
#endif
	left = 7;
	do
	END(0) END(1) END(2)
	:: left == 0 -> break
	od;
	if
	:: ok -> ended++
	:: else
	fi;
over:
	skip
}

init {
	byte first, a, b;
	select(first : 1 .. 2); select(a : 1 .. 2); select(b : 1 .. 2);
	d_step {
		G[0] = first; G[1] = first; G[2] = first;
		Q[0] = first; Q[1] = first; Q[2] = first
	}
	atomic { run Change(1, a); run Change(2, b) }
}
