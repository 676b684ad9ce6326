/*
 * Restarts of nodes in package lock, for the spin model checker: a quarantine that is shortened by what the other
 * nodes say, and locks that are given to a node before it is admitted. Claimed: at no time do two clients both
 * believe that they have the lease, and no quarantine lasts longer than the longest TTL. See exclusion.pml for
 * what a tick is, and for messages that come late or never.
 *
 * A lost node's admission begins with its nonce and a quarantine of TTL. From WAIT ticks later on it asks others, each
 * of which has to be admitted as it answers; when QUORUM have answered, the quarantine becomes the longest time to
 * live that they told, once. A round of a client counts no answer that comes LATE ticks after its first message. An
 * admission may read an admitted node's lock and plant it, any time later, while the node is still in quarantine. A
 * loss may leave locks behind (OLDDATA: also such as had ended). Attempts ask for ACQUIRE ticks and are extended to TTL.
 * RELEASES: holders may release. With SYM, nodes are sorted after each step: which is which is only a name.
 * OTHER: another process may see an admission that has begun, ask others from OWAIT ticks after that, and shorten its
 * quarantine by what these told it alone, any time later, unless it is shortened already.
 * INIT: nodes are new, and a first start admits them without quarantine; a node that lost its data looks new.
 *
 * A macro removes or changes one safeguard each; every such run must fail:
 *   WAIT=0      others are asked as soon as the nonce is written
 *   LATE=9      a round counts its answers whenever they come
 *   ASKS=n      fewer others are asked than a quorum
 *   HELDONLY    only locks that a quorum of the asked nodes has make a quarantine last
 *   NOPROOF     nodes answer that are lost themselves
 *   ADDROUNDS   answers to different rounds of an extension are added
 *   COUNTSLOST  a node in quarantine grants
 *   SHORTENS    a first message that comes again shortens its lock
 *   AGAIN       (WHOLE) an admission begins anew while a quarantine runs
 *   OWAIT=0     (OTHER) another process asks as soon as it sees the admission
 *   OASKS=n     (OTHER) and fewer others than a quorum
 *   OLOOSE      (OTHER) what others told for one admission shortens another's quarantine
 *   LOOSEINIT   a first start looks at counters only
 * REACHED fails where an admission ends early, and both attempts have held the lease.
 */
#ifndef N
#define N 3
#endif
#ifndef TTL
#define TTL 3
#endif
#ifndef ACQUIRE
#define ACQUIRE TTL
#endif
#ifndef LOSSES
#define LOSSES 2
#endif
#ifndef EXTENDS
#define EXTENDS 0
#endif
#ifndef REPEATS
#define REPEATS 0
#endif
#ifndef WAIT
#define WAIT 1
#endif
#ifndef LATE
#define LATE 1
#endif
#define QUORUM (N/2 + 1)
#ifndef ASKS
#define ASKS QUORUM
#endif
#ifndef OWAIT
#define OWAIT WAIT
#endif
#ifndef OASKS
#define OASKS QUORUM
#endif
#define BIT(x) (1 << (x))
#define MIN(a, b) ((a) < (b) -> (a) : (b))
#define MAX(a, b) ((a) > (b) -> (a) : (b))

/* of a node */
#define ADMITTED 0
#define LOST 1
#define BEGUN 2
#define NEW 3           /* or lost, and looks so */
#define FIRST 4         /* its first start has begun */

/* nodes */
byte L[N], T[N];        /* owner of the lock and its time to live */
byte st[N];
byte Q[N], W[N];        /* what is left of the quarantine; ticks since it began, for as long as that matters */
byte asked[N], high[N]; /* who has answered, one bit each, and the longest time to live that was told */
bool set[N];            /* the quarantine is shortened */
byte gL[N], gT[N];      /* a lock that was read for this node */
byte arr[N], gr[N];     /* attempts whose message has arrived; whose reply was taken; one bit each */
byte ea[N], er[N];      /* the same of the extension */
#ifdef INIT
bool cnt[N];            /* it has counters */
#endif
#ifdef OTHER
byte oN = N;            /* the node whose admission another process has seen; N: none */
byte oW, oasked, ohigh; /* ticks since then; who has answered it, and the longest time to live that was told */
#endif

/* attempts, 1 and 2 */
byte ph[3];             /* 0 idle, 1 sent, 3 holds, 4 over */
byte v[3];              /* validity that is left, as the client counts */
byte age[3];            /* of the round; LATE: too old */
byte ev[3];             /* validity that the extension will give; 0: none on its way */
bool sent[3];           /* an extension was: its messages may come late */
byte losses, extends, repeats;
bool early;
byte m, n, c, i;        /* of one step */

#ifdef COUNTSLOST
#define TAKES(x) (st[x] == ADMITTED || st[x] == BEGUN)
#else
#define TAKES(x) (st[x] == ADMITTED)
#endif
#define CANBEGIN(a) (ph[a] == 0 && (a == 1 || ph[a-1] > 0))
#define CANGRANT(a, x) (TAKES(x) && ph[a] > 0 && (L[x] == 0 || L[x] == a) && (!(arr[x] & BIT(a)) || repeats < REPEATS))
#define CANEXTEND(a) (ph[a] == 3 && extends < EXTENDS)
#define CANTAKE(a, x) (sent[a] && TAKES(x) && L[x] == a && !(ea[x] & BIT(a)))
#ifdef AGAIN
#define CANADMITBEGIN(x) (st[x] == LOST || st[x] == NEW || st[x] == BEGUN && Q[x] > 0)
#else
#define CANADMITBEGIN(x) (st[x] == LOST || st[x] == NEW)
#endif
#ifdef NOPROOF
#define ANSWERS(y) true
#else
#define ANSWERS(y) TAKES(y)
#endif
#define CANASK(x, y) (x != y && st[x] == BEGUN && W[x] >= WAIT && !set[x] && ANSWERS(y) && !(asked[x] & BIT(y)))
#define OBITS ((oasked & 1) + (oasked >> 1 & 1) + (oasked >> 2 & 1) + (oasked >> 3 & 1) + (oasked >> 4 & 1))
#define CANSEE(x) (oN == N && st[x] == BEGUN)
#define CANOASK(y) (oN < N && oN != y && oW >= OWAIT && TAKES(y) && !(oasked & BIT(y)))
#define CANOSHORTEN (oN < N && OBITS >= OASKS)
#define CANADMIT(x) (st[x] == BEGUN && Q[x] == 0)
#ifdef GIVE
#define CANREAD(x, y) (x != y && st[x] == BEGUN && TAKES(y) && L[y] != 0 && gL[x] == 0)
#define CANPLANT(x) (gL[x] != 0 && L[x] == 0 && st[x] == BEGUN)
#else
#define CANREAD(x, y) false
#define CANPLANT(x) false
#endif

#if N == 3
#define NODES(X, a) X(a, 0) X(a, 1) X(a, 2)
#define EACHNODE(X) X(0) X(1) X(2)
#define ALL(cond) ((cond(0)) && (cond(1)) && (cond(2)))
#else
#define NODES(X, a) X(a, 0) X(a, 1) X(a, 2) X(a, 3) X(a, 4)
#define EACHNODE(X) X(0) X(1) X(2) X(3) X(4)
#define ALL(cond) ((cond(0)) && (cond(1)) && (cond(2)) && (cond(3)) && (cond(4)))
#endif
#define EACH(X) NODES(X, 1) NODES(X, 2)

#ifdef INIT             /* nobody can tell a group that has lost all its nodes from a new one */
#define ANOTHER(x) (st[0] == ADMITTED && x != 0 || st[1] == ADMITTED && x != 1 || st[2] == ADMITTED && x != 2)
#else
#define ANOTHER(x) true
#endif
#ifdef INIT
#ifdef LOOSEINIT
#define UNUSED(x) (!cnt[x] && st[x] != LOST && st[x] != BEGUN)
#define CANFIRST(x) (st[x] == NEW && ALL(UNUSED))
#define CANSTART(x) (st[x] == FIRST && ALL(UNUSED))
#else
#define UNSTARTED(x) (st[x] == NEW || st[x] == FIRST)
#define STARTING(x) (!cnt[x] && (st[x] == FIRST || st[x] == ADMITTED))
#define CANFIRST(x) (st[x] == NEW && ALL(UNSTARTED))
#define CANSTART(x) (st[x] == FIRST && ALL(STARTING))
#endif
#endif

#define TRYBEGIN(a) :: CANBEGIN(a) -> m = a; goto begin
#define TRYGRANT(a, x) :: CANGRANT(a, x) -> m = a; n = x; goto grant
#define TRYRELEASE(a) :: ph[a] == 3 -> m = a; goto release
#define TRYFREE(a, x) :: ph[a] == 4 && L[x] == a && TAKES(x) -> n = x; goto free
#define TRYEXTEND(a) :: CANEXTEND(a) -> m = a; goto extend
#define TRYTAKE(a, x) :: CANTAKE(a, x) -> m = a; n = x; goto take
#define TRYLOSE(x) :: losses < LOSSES && TAKES(x) && ANOTHER(x) -> n = x; goto lose
#define TRYADMITBEGIN(x) :: CANADMITBEGIN(x) -> n = x; goto admitbegin
#define TRYADMIT(x) :: CANADMIT(x) -> n = x; goto admit
#define TRYASK(x, y) :: CANASK(x, y) -> n = x; m = y; goto ask
#define TRYREAD(x, y) :: CANREAD(x, y) -> n = x; m = y; goto read
#define TRYPLANT(x) :: CANPLANT(x) -> n = x; goto plant
#define TRYFIRST(x) :: CANFIRST(x) -> n = x; goto first
#define TRYSTART(x) :: CANSTART(x) -> n = x; goto start
#define TRYSEE(x) :: CANSEE(x) -> n = x; goto see
#define TRYOASK(y) :: CANOASK(y) -> m = y; goto oask
#define PAIRS(X, x) NODES(X, x)

/* c = how many nodes' words have the attempt's bit */
#define COUNT(words) c = 0; i = 0; do :: i < N -> c = c + (words[i] & BIT(m) -> 1 : 0); i++ :: else -> break od; i = 0

inline over(a) {
	ph[a] = 4; v[a] = 0; ev[a] = 0; age[a] = 0;
	c = 0;
	do
	:: c < N -> gr[c] = gr[c] & ~BIT(a); er[c] = er[c] & ~BIT(a); c++
	:: else -> break
	od;
	c = 0
}

#if defined(OTHER) && !defined(OLOOSE)
#define UNSEE(x) if :: oN == x -> oN = N; oW = 0; oasked = 0; ohigh = 0 :: else fi
#else
#define UNSEE(x) skip
#endif
inline forget(x) {
	asked[x] = 0; high[x] = 0; set[x] = false; W[x] = 0; gL[x] = 0; gT[x] = 0; Q[x] = 0;
	UNSEE(x)
}

#define SWAP(f) c = f[x]; f[x] = f[y]; f[y] = c
#define SWAPBITS(w) (w & ~(BIT(x) | BIT(y)) | ((w >> x) & 1) << y | ((w >> y) & 1) << x)
#define K1(z) (L[z] + (T[z] << 2) + (st[z] << 5) + (Q[z] << 8) + (W[z] << 11) + (arr[z] << 15) + (gr[z] << 18) + (ea[z] << 21) + (er[z] << 24))
#ifdef OTHER
#define SEEN(z) (oN == z)
#else
#define SEEN(z) 0
#endif
#define K2(z) (high[z] + (set[z] << 4) + (gL[z] << 6) + (gT[z] << 8) + (SEEN(z) << 12))
inline order(x, y) {
	if
	:: K1(x) > K1(y) || K1(x) == K1(y) && K2(x) > K2(y) ->
		SWAP(L); SWAP(T); SWAP(st); SWAP(Q); SWAP(W); SWAP(asked); SWAP(high); SWAP(set); SWAP(gL); SWAP(gT);
		SWAP(arr); SWAP(gr); SWAP(ea); SWAP(er);
#ifdef INIT
		SWAP(cnt);
#endif
#ifdef OTHER
		oasked = SWAPBITS(oasked);
		oN = (oN == x -> y : (oN == y -> x : oN));
#endif
		c = 0;
		do
		:: c < N -> asked[c] = SWAPBITS(asked[c]); c++
		:: else -> break
		od;
		c = 0
	:: else
	fi
}

active proctype System() {
#ifdef INIT
	atomic { do :: n < N -> st[n] = NEW; n++ :: else -> break od; n = 0 }
#endif
end:
	atomic {
		if
		TRYBEGIN(1) TRYBEGIN(2) EACH(TRYGRANT)
#ifdef RELEASES
		TRYRELEASE(1) TRYRELEASE(2) EACH(TRYFREE)
#endif
#if EXTENDS
		TRYEXTEND(1) TRYEXTEND(2) EACH(TRYTAKE)
#endif
#if LOSSES
		EACHNODE(TRYLOSE) EACHNODE(TRYADMITBEGIN) EACHNODE(TRYADMIT)
#ifndef WHOLE
		PAIRS(TRYASK, 0) PAIRS(TRYASK, 1) PAIRS(TRYASK, 2)
#if N > 3
		PAIRS(TRYASK, 3) PAIRS(TRYASK, 4)
#endif
#endif
#ifdef OTHER
		EACHNODE(TRYSEE) EACHNODE(TRYOASK)
		:: CANOSHORTEN -> n = oN; goto oshorten
#endif
#ifdef GIVE
		PAIRS(TRYREAD, 0) PAIRS(TRYREAD, 1) PAIRS(TRYREAD, 2)
#if N > 3
		PAIRS(TRYREAD, 3) PAIRS(TRYREAD, 4)
#endif
		EACHNODE(TRYPLANT)
#endif
#endif
#ifdef INIT
		EACHNODE(TRYFIRST) EACHNODE(TRYSTART)
#endif
		:: goto tick
		fi;

tick:           /* time passes, for all clocks alike */
		skip;
		d_step {
			printf("-- tick\n");
			do
			:: n < N ->
				Q[n] = (Q[n] > 0 -> Q[n] - 1 : 0);
				if
				:: st[n] == BEGUN -> W[n] = MIN(W[n] + 1, TTL + 1); assert(W[n] <= TTL || Q[n] == 0)     /* it ends */
				:: else
				fi;
				if
				:: T[n] > 1 -> T[n] = T[n] - 1
				:: T[n] == 1 -> T[n] = 0; L[n] = 0
				:: else
				fi;
				n++
			:: else -> break
			od;
#ifdef OTHER
			oW = (oN < N -> MIN(oW + 1, OWAIT) : 0);
#endif
			i = 1;
			do
			:: i <= 2 ->
				v[i] = (v[i] > 0 -> v[i] - 1 : 0);
				ev[i] = (ev[i] > 0 -> ev[i] - 1 : 0);
				age[i] = (ph[i] == 1 || ev[i] > 0 -> MIN(age[i] + 1, LATE) : 0);
				if
				:: v[i] == 0 && (ph[i] == 1 || ph[i] == 3) -> printf("attempt %d is over: its time has run out\n", i); over(i)
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
		d_step { ph[m] = 1; v[m] = ACQUIRE; age[m] = 0; printf("attempt %d sends its first message\n", m) }
		goto done;
grant:          /* acquire.lua */
		skip;
		d_step {
			if
			:: arr[n] & BIT(m) -> repeats++; printf("again: ")
			:: else -> arr[n] = arr[n] | BIT(m)
			fi;
#ifdef SHORTENS
			T[n] = ACQUIRE;
#else
			T[n] = (L[n] == m -> MAX(T[n], ACQUIRE) : ACQUIRE);
#endif
			L[n] = m;
#ifdef INIT
			cnt[n] = true;
#endif
			printf("node %d grants attempt %d for %d ticks\n", n, m, T[n])
		}
		if
		:: ph[m] == 1 && age[m] < LATE ->
			d_step {
				gr[n] = gr[n] | BIT(m);
				COUNT(gr);
				if
				:: c >= QUORUM ->
					ph[m] = 3; age[m] = 0;
					printf("attempt %d holds the lease for %d ticks\n", m, v[m]);
					assert(ph[3 - m] != 3);         /* exclusion */
#ifdef REACHED
					assert(!early || ph[3 - m] != 4);
#endif
				:: else
				fi
			}
		:: printf("  (its reply comes too late or never)\n")
		fi;
		goto done;
#ifdef RELEASES
release:
		skip;
		d_step { over(m); printf("attempt %d releases\n", m) }
		goto done;
free:           /* release.lua */
		skip;
		d_step { printf("node %d deletes the lock of attempt %d\n", n, L[n]); L[n] = 0; T[n] = 0 }
		goto done;
#endif
#if EXTENDS
extend:         /* a new round */
		skip;
		d_step {
			extends++; sent[m] = true; ev[m] = TTL; age[m] = 0;
			do
			:: i < N ->
				ea[i] = ea[i] & ~BIT(m);
#ifndef ADDROUNDS
				er[i] = er[i] & ~BIT(m);
#endif
				i++
			:: else -> break
			od;
			i = 0;
			printf("attempt %d asks to extend\n", m)
		}
		goto done;
take:           /* extend.lua */
		skip;
		d_step {
			ea[n] = ea[n] | BIT(m);
			T[n] = MAX(T[n], TTL);
			printf("node %d extends attempt %d: %d ticks\n", n, m, T[n])
		}
		if
		:: ev[m] > 0 && ph[m] == 3 && age[m] < LATE ->
			d_step {
				er[n] = er[n] | BIT(m);
				COUNT(er);
				if
				:: c >= QUORUM -> v[m] = MAX(v[m], ev[m]); ev[m] = 0; printf("attempt %d is extended: %d ticks left\n", m, v[m])
				:: else
				fi
			}
		:: printf("  (its reply comes too late or never)\n")
		fi;
		goto done;
#endif
#if LOSSES
lose:
		losses++; forget(n);
		if
		:: L[n] = 0; T[n] = 0;
#ifdef INIT
			cnt[n] = false; st[n] = NEW
#else
			st[n] = LOST
#endif
		:: st[n] = LOST
#ifdef OLDDATA
		:: arr[n] & BIT(1) -> st[n] = LOST; L[n] = 1; T[n] = ACQUIRE
		:: arr[n] & BIT(2) -> st[n] = LOST; L[n] = 2; T[n] = ACQUIRE
#endif
		fi;
		printf("node %d loses its run, and has a lock of %d for %d ticks\n", n, L[n], T[n]);
		goto done;
admitbegin:     /* admit_begin.lua */
		skip;
		d_step {
			i = W[n]; forget(n); W[n] = i; i = 0;
			st[n] = BEGUN; Q[n] = TTL; printf("an admission of node %d begins\n", n)
		}
		goto done;
ask:            /* locks.lua on the other node; with the last answer shorten.lua */
		skip;
		d_step {
			asked[n] = asked[n] | BIT(m);
#ifndef HELDONLY
			high[n] = MAX(high[n], T[m]);
#endif
			printf("node %d is told of %d ticks by node %d\n", n, T[m], m);
			c = 0; i = 0;
			do
			:: i < N -> c = c + (asked[n] & BIT(i) -> 1 : 0); i++
			:: else -> break
			od;
			if
			:: c >= ASKS ->
#ifdef HELDONLY
				i = 0; c = 0;
				do
				:: i < N -> c = c + ((asked[n] & BIT(i)) && L[i] == L[m] -> 1 : 0); i++
				:: else -> break
				od;
				high[n] = (c >= QUORUM -> T[m] : 0);
#endif
				set[n] = true;
				if
				:: high[n] < Q[n] -> Q[n] = high[n]; early = true
				:: else
				fi;
				asked[n] = 0; high[n] = 0;
				printf("the quarantine of node %d is %d ticks\n", n, Q[n])
			:: else
			fi;
			i = 0; c = 0
		}
		goto done;
#ifdef OTHER
see:
		skip;
		d_step { oN = n; printf("another process sees the admission of node %d\n", n) }
		goto done;
oask:           /* as ask */
		skip;
		d_step {
			oasked = oasked | BIT(m); ohigh = MAX(ohigh, T[m]);
			printf("another process is told of %d ticks by node %d\n", T[m], m)
		}
		goto done;
oshorten:       /* shorten.lua */
		skip;
		d_step {
			if
			:: st[n] == BEGUN && !set[n] ->
				set[n] = true;
				if
				:: ohigh < Q[n] -> Q[n] = ohigh; early = true
				:: else
				fi;
				printf("another process shortens the quarantine of node %d to %d ticks\n", n, Q[n])
			:: else
			fi;
			oN = N; oW = 0; oasked = 0; ohigh = 0
		}
		goto done;
#endif
#ifdef GIVE
read:
		skip;
		d_step { gL[n] = L[m]; gT[n] = T[m]; printf("node %d may be given the lock of attempt %d\n", n, gL[n]) }
		goto done;
plant:          /* give.lua */
		skip;
		d_step { L[n] = gL[n]; T[n] = gT[n]; gL[n] = 0; gT[n] = 0; printf("node %d is given the lock of attempt %d for %d ticks\n", n, L[n], T[n]) }
		goto done;
#endif
admit:          /* admit.lua */
		skip;
		d_step {
			forget(n);
			st[n] = ADMITTED; printf("node %d is admitted\n", n)
		}
		goto done;
#endif
#ifdef INIT
first:
		skip;
		d_step { st[n] = FIRST; printf("a first start of node %d begins\n", n) }
		goto done;
start:
		skip;
		d_step { st[n] = ADMITTED; printf("a first start admits node %d\n", n) }
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
