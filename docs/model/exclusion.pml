/*
 * Exclusion in package lock, for the spin model checker: at no time do two
 * clients both believe that they have the lease. That needs clocks; here they
 * tick together, but for DRIFT and JUMPS. The tokens, which need no clock, are in
 * tokens.pml; so a lease is complete here when a quorum has granted, as for one
 * that is armed, which skips confirming.
 *
 * A tick is the unit of time. Between two ticks anything may happen, in any order.
 * TTL is the longest one too, and so the length of the quarantine. A message
 * arrives at any time after it was sent, also after its attempt's end, or never,
 * or again (REPEATS); its reply is taken then or never. A node may lose its data
 * (LOSSES): its locks, and with the next admission a quarantine begins. A holder
 * may release, and may extend (EXTENDS times in a run, to TTL, or with SHORTER to
 * any shorter one as well). A client whose validity is over stops: by its timer,
 * or when it next looks, if it was suspended.
 *
 * Time is not bounded: what has run out stays so, and the states repeat.
 *
 * DRIFT: each node's clock may gain one tick in a run. MARGIN: what a client takes
 * off each TTL for that. JUMPS: a node's clock jumps past everything.
 * With SYM, nodes are sorted after each step: which is which is only a name.
 *
 * A macro removes or changes one safeguard each; every such run must fail:
 *   QUARANTINE=q    a quarantine of another length than TTL
 *   NOQUARANTINE    a node that lost its data goes on granting
 *   FROMEND         validity counts from the last reply
 *   NORECHECK       validity is computed before the last step (arming), and not looked at after it
 *   HOPED           an extension counts from its sending, before a quorum has answered
 *   SHORTENS        (SHORTER) a node takes a shorter TTL in place of a longer one
 *   LOOSEADMIT      an admission may end in another run than it began in: without a new quarantine
 *   WEAKQUORUM      quorum - 1
 *   NOOWNER         releasing deletes whoever's lock it finds
 * With ORDERED, a later extension's messages overtake no earlier one's. With EARLY,
 * the deadline falls before a shorter extension is sent, not when it is answered.
 * REACHED fails where all attempts can hold the lease, one after the other.
 */
#ifndef N
#define N 3
#endif
#ifndef ATTEMPTS
#define ATTEMPTS 2
#endif
#ifndef TTL
#define TTL 3
#endif
#ifndef QUARANTINE
#define QUARANTINE TTL
#endif
#ifndef MARGIN
#define MARGIN 0
#endif
#ifndef LOSSES
#define LOSSES 0
#endif
#ifndef EXTENDS
#define EXTENDS 0
#endif
#ifndef REPEATS
#define REPEATS 0
#endif
#ifndef DRIFT
#define DRIFT 0
#endif
#ifndef JUMPS
#define JUMPS 0
#endif
#ifdef SHORTER
#define SHORTEST (MARGIN + 1)
#else
#define SHORTEST TTL
#endif
#ifdef WEAKQUORUM
#define NEED (N/2)
#else
#define NEED (N/2 + 1)
#endif
#define BIT(x) (1 << (x))
#define MIN(a, b) ((a) < (b) -> (a) : (b))
#define MAX(a, b) ((a) > (b) -> (a) : (b))

/* nodes */
byte L[N], T[N];        /* owner of the lock and its time to live */
byte Q[N];              /* what is left of the quarantine */
byte st[N];             /* 0 admitted, 1 lost, 2 its admission has begun */
bool old[N];            /* a slow admission of an earlier run is in a snapshot, its quarantine long over */
bool fast[N];           /* its clock has gained its tick */
byte arr[N], gr[N];     /* attempts whose message has arrived; whose reply was taken; one bit each */
#if EXTENDS
byte ea[N], er[N];      /* the same of the extension */
byte pa[N];             /* the same of the extension before it */
#endif

/* attempts, from 1 */
byte ph[ATTEMPTS + 1];  /* 0 idle, 1 phase 1, 2 arming, 3 holder, 4 over */
byte v[ATTEMPTS + 1];   /* validity that is left, as the client counts */
#ifdef NORECHECK
byte w[ATTEMPTS + 1];   /* validity as it was when the quorum had granted */
#endif
#if EXTENDS
byte ev[ATTEMPTS + 1];  /* validity that the extension will give; 0: none on its way */
byte el[ATTEMPTS + 1];  /* TTL that it asks for; stays while its messages may be late */
byte pl[ATTEMPTS + 1];  /* the same of the extension before it */
#endif
byte losses = 0, extends = 0, repeats = 0, jumps = 0;
#ifdef REACHED
byte held = 0;
#endif

byte m, n, c, i;        /* of one step */

#define CANGRANT(a, x) (st[x] == 0 && ph[a] > 0 && (L[x] == 0 || L[x] == a) && (!(arr[x] & BIT(a)) || repeats < REPEATS))
#define CANBEGIN(a) (ph[a] == 0 && (a == 1 || ph[a-1] > 0))
#define CANCOMPLETE(a) (ph[a] == 2 && VALID(a))
#ifdef NORECHECK
#define VALID(a) (w[a] > 0)
#else
#define VALID(a) (v[a] > 0)
#endif
#ifdef NOOWNER
#define CANFREE(a, x) (ph[a] == 4 && L[x] != 0)
#else
#define CANFREE(a, x) (ph[a] == 4 && L[x] == a)
#endif
/* one extension of an attempt's is on its way at a time, but messages of it and of the one before may be late */
#define CANEXTEND(a) (ph[a] == 3 && ev[a] == 0 && extends < EXTENDS)
#define CANGIVEUP(a) (ev[a] > 0)
#define CANTAKE(a, x) (el[a] > 0 && st[x] == 0 && L[x] == a && !(ea[x] & BIT(a)))
#define CANTAKELATE(a, x) (pl[a] > 0 && st[x] == 0 && L[x] == a && !(pa[x] & BIT(a)))

#if N == 3
#define NODES(X, a) X(a, 0) X(a, 1) X(a, 2)
#else
#define NODES(X, a) X(a, 0) X(a, 1) X(a, 2) X(a, 3) X(a, 4)
#endif
#if ATTEMPTS == 2
#define ALL(X) X(1) X(2)
#define EACH(X) NODES(X, 1) NODES(X, 2)
#else
#define ALL(X) X(1) X(2) X(3)
#define EACH(X) NODES(X, 1) NODES(X, 2) NODES(X, 3)
#endif
#define TRYBEGIN(a) :: CANBEGIN(a) -> m = a; goto begin
#define TRYGRANT(a, x) :: CANGRANT(a, x) -> m = a; n = x; goto grant
#define TRYCOMPLETE(a) :: CANCOMPLETE(a) -> m = a; goto complete
#define TRYRELEASE(a) :: ph[a] == 3 -> m = a; goto release
#define TRYFREE(a, x) :: CANFREE(a, x) -> m = a; n = x; goto free
#define TRYEXTEND(a) :: CANEXTEND(a) -> m = a; goto extend
#define TRYGIVEUP(a) :: CANGIVEUP(a) -> m = a; goto giveup
#define TRYTAKE(a, x) :: CANTAKE(a, x) -> m = a; n = x; goto take
#define TRYTAKELATE(a, x) :: CANTAKELATE(a, x) -> m = a; n = x; goto takelate
#define TRYLOSE(k, x) :: losses < LOSSES -> n = x; goto lose
#ifdef LOOSEADMIT       /* another one begins when the quarantine of the first, which is slow, is over */
#define CANADMITBEGIN(x) (st[x] == 1 || st[x] == 2 && Q[x] == 0)
#else
#define CANADMITBEGIN(x) (st[x] == 1)
#endif
#define TRYADMITBEGIN(k, x) :: CANADMITBEGIN(x) -> n = x; goto admitbegin
#define TRYADMIT(k, x) :: st[x] == 2 && Q[x] == 0 -> n = x; goto admit
#define TRYLOOSE(k, x) :: st[x] == 1 && old[x] -> n = x; goto admit
#define TRYGAIN(k, x) :: !fast[x] && (T[x] > 0 || Q[x] > 0) -> n = x; goto gain
#define TRYJUMP(k, x) :: jumps < JUMPS && (T[x] > 0 || Q[x] > 0) -> n = x; goto jump

/* the node's clock counts one tick */
inline age(x) {
	Q[x] = (Q[x] > 0 -> Q[x] - 1 : 0);
	if
	:: T[x] > 1 -> T[x] = T[x] - 1
	:: T[x] == 1 -> T[x] = 0; L[x] = 0
	:: else
	fi
}

/* c = how many nodes' words have the attempt's bit */
#define COUNT(words) c = 0; i = 0; do :: i < N -> c = c + (words[i] & BIT(m) -> 1 : 0); i++ :: else -> break od; i = 0

inline over(a) {
	ph[a] = 4; v[a] = 0;
#ifdef NORECHECK
	w[a] = 0;
#endif
#if EXTENDS
	ev[a] = 0;
#endif
	c = 0;
	do
	:: c < N -> gr[c] = gr[c] & ~BIT(a); c++
	:: else -> break
	od;
	c = 0
}

#define SWAP(f) c = f[x]; f[x] = f[y]; f[y] = c
#define K1(z) (arr[z] + (gr[z] << 4) + (L[z] << 8) + (T[z] << 12) + (Q[z] << 16) + (st[z] << 20) + (old[z] << 24) + (fast[z] << 25))
#if EXTENDS
#define K2(z) (ea[z] + (er[z] << 4) + (pa[z] << 8))
#else
#define K2(z) 0
#endif
inline order(x, y) {
	if
	:: K1(x) > K1(y) || K1(x) == K1(y) && K2(x) > K2(y) ->
		SWAP(L); SWAP(T); SWAP(Q); SWAP(st); SWAP(old); SWAP(fast); SWAP(arr); SWAP(gr);
#if EXTENDS
		SWAP(ea); SWAP(er); SWAP(pa);
#endif
		c = 0
	:: else
	fi
}

active proctype System() {
end:
	atomic {
		if
		ALL(TRYBEGIN) EACH(TRYGRANT) ALL(TRYCOMPLETE) ALL(TRYRELEASE) EACH(TRYFREE)
#if EXTENDS
		ALL(TRYEXTEND) ALL(TRYGIVEUP) EACH(TRYTAKE)
#ifndef ORDERED
		EACH(TRYTAKELATE)
#endif
#endif
#ifdef NOQUARANTINE
		NODES(TRYLOSE, 0)
#elif LOSSES
		NODES(TRYLOSE, 0) NODES(TRYADMITBEGIN, 0) NODES(TRYADMIT, 0)
#ifdef LOOSEADMIT
		NODES(TRYLOOSE, 0)
#endif
#endif
#if DRIFT
		NODES(TRYGAIN, 0)
#endif
#if JUMPS
		NODES(TRYJUMP, 0)
#endif
		:: goto tick
		fi;

tick:           /* time passes, for all clocks alike */
		skip;
		d_step {
			printf("-- tick\n");
			do
			:: n < N -> age(n); n++
			:: else -> break
			od;
			i = 1;
			do
			:: i <= ATTEMPTS ->
				v[i] = (v[i] > 0 -> v[i] - 1 : 0);
#if EXTENDS
				ev[i] = (ev[i] > 0 -> ev[i] - 1 : 0);
#endif
				if
				:: v[i] == 0 && (ph[i] == 1 || ph[i] == 3 || ph[i] == 2 && !VALID(i)) -> printf("attempt %d is over: its time has run out\n", i); over(i)
				:: else
				fi;
				i++
			:: else -> break
			od;
			i = 0
		}
		goto done;
begin:
		skip;
		d_step { ph[m] = 1; v[m] = TTL - MARGIN; printf("attempt %d sends its first message: valid for %d ticks\n", m, v[m]) }
		goto done;
grant:          /* acquire.lua */
		skip;
		d_step {
			if
			:: arr[n] & BIT(m) -> repeats++; printf("again: ")
			:: else -> arr[n] = arr[n] | BIT(m)
			fi;
			L[n] = m; T[n] = TTL;
			printf("node %d grants attempt %d for %d ticks\n", n, m, TTL)
		}
		if
		:: ph[m] == 1 ->
			d_step {
				gr[n] = gr[n] | BIT(m);
				COUNT(gr);
				if
				:: c >= NEED ->
					ph[m] = 2;
#ifdef NORECHECK
					w[m] = v[m];
#endif
					printf("attempt %d has its quorum, with %d ticks left\n", m, v[m])
				:: else
				fi
			}
		:: printf("  (its reply comes too late or never)\n")
		fi;
		goto done;
complete:       /* armed, and the deadline looked at again */
		skip;
		d_step {
#ifdef NORECHECK
			v[m] = w[m]; w[m] = 0;
#endif
#ifdef FROMEND
			v[m] = TTL - MARGIN;
#endif
			ph[m] = 3;
			printf("attempt %d holds the lease for %d ticks\n", m, v[m]);
			i = 1;
			do
			:: i <= ATTEMPTS -> assert(i == m || ph[i] != 3); i++   /* exclusion */
			:: else -> break
			od;
			i = 0;
#ifdef REACHED
			held++;
			assert(held < ATTEMPTS);
#endif
		}
		goto done;
release:
		skip;
		d_step { over(m); printf("attempt %d releases\n", m) }
		goto done;
free:           /* release.lua */
		skip;
		d_step { printf("node %d deletes the lock of attempt %d\n", n, L[n]); L[n] = 0; T[n] = 0 }
		goto done;
#if EXTENDS
extend:
		c = TTL;
		do
		:: c > SHORTEST -> c--
		:: break
		od;
		skip;
		d_step {
			extends++;
#ifndef ORDERED
			pl[m] = el[m];
#endif
			el[m] = c; ev[m] = c - MARGIN;
			do
			:: i < N ->
#ifndef ORDERED
				pa[i] = pa[i] & ~BIT(m) | ea[i] & BIT(m);
#endif
				ea[i] = ea[i] & ~BIT(m); er[i] = er[i] & ~BIT(m); i++
			:: else -> break
			od;
#if defined(HOPED)
			v[m] = ev[m];
#elif defined(EARLY)
			v[m] = MIN(v[m], ev[m]);
#endif
			printf("attempt %d asks to extend to %d ticks\n", m, c)
		}
		goto done;
take:           /* extend.lua */
		skip;
		d_step {
			ea[n] = ea[n] | BIT(m);
#ifdef SHORTENS
			T[n] = el[m];
#else
			T[n] = MAX(T[n], el[m]);
#endif
			printf("node %d extends attempt %d: %d ticks\n", n, m, T[n])
		}
		if
		:: ev[m] > 0 && ph[m] == 3 ->
			d_step {
				er[n] = er[n] | BIT(m);
				COUNT(er);
				if
				:: c >= NEED -> v[m] = ev[m]; ev[m] = 0; printf("attempt %d is extended: %d ticks left\n", m, v[m])
				:: else
				fi
			}
		:: printf("  (its reply comes too late or never)\n")
		fi;
		goto done;
#ifndef ORDERED
takelate:
		skip;
		d_step {
			pa[n] = pa[n] | BIT(m);
#ifdef SHORTENS
			T[n] = pl[m];
#else
			T[n] = MAX(T[n], pl[m]);
#endif
			printf("late, node %d takes the extension of attempt %d before the last: %d ticks\n", n, m, T[n])
		}
		goto done;
#endif
giveup:         /* no quorum in time: some nodes may have taken the new TTL */
		skip;
		d_step {
			v[m] = MIN(v[m], ev[m]); ev[m] = 0;
			printf("attempt %d gives up extending: %d ticks left\n", m, v[m])
		}
		goto done;
#endif
#if LOSSES
lose:
		skip;
		d_step {
			losses++; L[n] = 0; T[n] = 0; Q[n] = 0;         /* with old: restarts from that snapshot */
#ifndef NOQUARANTINE
			st[n] = 1;
#endif
			printf("node %d loses its data\n", n)
		}
		goto done;
#ifndef NOQUARANTINE
admitbegin:     /* admit_begin.lua */
		skip;
		d_step { old[n] = old[n] || st[n] == 2; st[n] = 2; Q[n] = QUARANTINE; printf("an admission of node %d begins: quarantine of %d ticks\n", n, Q[n]) }
		goto done;
admit:          /* admit.lua */
		skip;
		d_step { st[n] = 0; Q[n] = 0; printf("node %d is admitted\n", n) }
		goto done;
#endif
#endif
#if DRIFT
gain:
		skip;
		d_step { fast[n] = true; age(n); printf("the clock of node %d gains a tick\n", n) }
		goto done;
#endif
#if JUMPS
jump:
		skip;
		d_step { jumps++; L[n] = 0; T[n] = 0; Q[n] = 0; printf("the clock of node %d jumps ahead\n", n) }
		goto done;
#endif
done:
		skip;
		d_step { m = 0; n = 0; c = 0; i = 0 }
#ifdef SYM
		d_step {
#if N == 3
			order(0, 1); order(1, 2); order(0, 1)
#else
			order(0, 1); order(3, 4); order(2, 4); order(2, 3); order(1, 4);
			order(0, 3); order(0, 2); order(1, 3); order(1, 2)
#endif
		}
#endif
		goto end
	}
}
