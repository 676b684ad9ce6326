/*
 * The token protocol of package lock, for the spin model checker. Timeless: see
 * exclusion.pml for what needs clocks.
 *
 * Claim: two successful acquisitions of one resource have different tokens, and
 * if one completed before the other began, its token is lower. Nothing is
 * assumed about time: a lock may vanish from a node at any instant, a message
 * may come late, be lost, or arrive twice, an attempt may be abandoned, a node
 * may lose its data or its run, admissions may be slow and overtake each other.
 *
 * What keeps the model small, and loses no behaviour:
 * - Messages are not queued. A node acts on one when it arrives, at any time from
 *   the attempt's first message on, also after its end ("late"), or never, or
 *   again ("repeated", REPEATS times in a run). Its reply is taken then, or never
 *   ("lost"). A delayed reply is no case of its own: it is local to the attempt.
 * - A lock that may vanish at any instant keeps nobody out. So a grant does not
 *   ask for it, and nothing ever deletes it: what is left of the lock is that a
 *   confirm finds another owner once another has been granted.
 * - An attempt begins with its first arrival and completes with its last reply:
 *   a later beginning or an earlier end only makes the claim stronger. One that
 *   does not go on is abandoned, or was refused.
 * - Attempts begin in the order of their numbers, which are only names.
 *   With SYM, nodes are sorted after each step: which is which is only a name too.
 *
 * Bounds: N nodes, ATTEMPTS, REPEATS of phase-1 messages, START (counters may
 * begin unlevel, as failed attempts leave them), FLOORS (an attempt may ask to be
 * counted above the highest counter that anybody has seen), LOSSES of data,
 * RESTARTS from an older snapshot (from the first state, or one of SNAPS later
 * ones), SWEEPS of counters (with NEXTEPOCH, also to a new epoch), ARMED (the fence decides; then also RETAKES above
 * the recorded token, and REVOKES), ADMINS (admissions in three steps; without it
 * an admission is one step), NODEEPOCH (the nodes keep the epoch: an admission reads
 * it on a quorum of others, and has one more promised by a quorum). KEEPLOCKS: locks survive the loss of the counters.
 *
 * A macro removes or changes one safeguard each; every such run must fail:
 *   NOCONFIRM   the highest counter is the token, without phase 2
 *   WRITEBACK   phase 2 raises the counter and asks for nothing
 *   OWNERONLY   confirm asks for the owner only, not for the counter
 *   NOOWNER     confirm asks for the counter only, not for the owner
 *   NOBASE      confirm looks at the counter, but not at the base
 *   WEAKQUORUM  quorum - 1
 *   SHAREDOWNER attempts share one owner id
 *   RECREATE    extending re-creates a lock that has vanished
 *   NOMARKER    a node that lost its data goes on granting
 *   NOBIND      the marker alone says that a node is admitted, not the scripts of its run
 *   MARKERONLY  a lost node is admitted again without a new epoch
 *   READREPAIR  a lost node is admitted with the others' counters, without an epoch
 *   NONONCE     (ADMINS) an admission looks at the node's base only
 *   EPOCHFIRST  (ADMINS) the epoch is raised before the nonce is written
 *   LOOSEADMIT  (ADMINS) an admission may end in another run than it began in
 *   NOPROMISE   (NODEEPOCH) an epoch that is read is used without having been promised
 *   READS=1     (NODEEPOCH) fewer other nodes are asked for their epoch than a quorum
 *   SWEEPALL    a sweep deletes counters above the base
 *   GREATEST    (ARMED) arming succeeds without looking
 *   NOSEAL      (ARMED) arming succeeds where the fence stands at the token already
 * REACHED is no safeguard: it fails where all attempts can complete, so that a
 * run that holds does not hold because nothing happens.
 */
#ifndef N
#define N 3
#endif
#ifndef ATTEMPTS
#define ATTEMPTS 2
#endif
#ifndef REPEATS
#define REPEATS 0
#endif
#ifndef START
#define START 0
#endif
#ifndef FLOORS
#define FLOORS 0
#endif
#ifndef LOSSES
#define LOSSES 0
#endif
#ifndef RESTARTS
#define RESTARTS 0
#endif
#ifndef SNAPS
#define SNAPS 0
#endif
#ifndef SWEEPS
#define SWEEPS 0
#endif
#ifndef ADMINS
#define ADMINS 0
#endif
#ifndef RETAKES
#define RETAKES 0
#endif
#ifndef REVOKES
#define REVOKES 0
#endif
#define QUORUM (N/2 + 1)
#define EPOCH 16        /* stands for 2^32 */
#ifdef WEAKQUORUM
#define NEED (QUORUM - 1)
#else
#define NEED QUORUM
#endif
#ifdef SHAREDOWNER
#define ID(m) 1
#else
#define ID(m) (m)
#endif
#define MAX(a, b) ((a) > (b) -> (a) : (b))
#define BIT(x) (1 << (x))

/* nodes */
byte C[N];              /* counter */
byte B[N];              /* base */
byte L[N];              /* owner of the lock; 0: none yet */
byte arr[N];            /* attempts whose phase-1 message has arrived, one bit each */
bool marker[N] = true;  /* the data says that the node is admitted */
bool bound[N] = true;   /* the run has the scripts of that admission */
#ifdef NODEEPOCH
byte P[N];              /* epoch that it was promised */
#endif
#if ADMINS
byte pend[N];           /* nonce of the admission that has begun */
bool pendrun[N];        /* it began in this run */
#endif
#if RESTARTS
byte sC[N], sB[N], sL[N]; bool smarker[N] = true;
#if ADMINS
byte spend[N];
#endif
#endif

/* attempts, from 1 */
#define G(m, n) got[(m)*N + (n)]
byte got[(ATTEMPTS + 1) * N];   /* counters of the grants whose replies arrived */
byte phase[ATTEMPTS + 1];       /* 0 idle, 1, 2, 3 complete */
byte top[ATTEMPTS + 1];         /* the token, from phase 2 on */
byte before[ATTEMPTS + 1];      /* highest token that was complete when it began */
#ifdef ARMED
byte asked[ATTEMPTS + 1];       /* floor, after the fence stood higher */
byte fence = 0, sealed = 0, retakes = 0, revokes = 0;
#endif
byte epoch = 0, repeats = 0, losses = 0, restarts = 0, snaps = 0, sweeps = 0;
#if ADMINS
byte stage[ADMINS + 1], at[ADMINS + 1], raised[ADMINS + 1];
#endif

/* of one step */
byte m, n, c, i;

#if defined(NOMARKER) || defined(ARMED)
#define ADMITTED(x) true
#elif defined(NOBIND)
#define ADMITTED(x) marker[x]
#else
#define ADMITTED(x) (marker[x] && bound[x])
#endif
#ifdef NOOWNER
#define OURS(a, x) true
#else
#define OURS(a, x) (L[x] == ID(a))
#endif
#if defined(OWNERONLY)
#define NOTPASSED(a, x) true
#elif defined(NOBASE)
#define NOTPASSED(a, x) (C[x] <= top[a])
#else
#define NOTPASSED(a, x) (MAX(C[x], B[x]) <= top[a])
#endif

/* what may happen, for attempt a, node x, admission k */
#define CANGRANT(a, x) (ADMITTED(x) && (a == 1 || phase[a-1] > 0) && (!(arr[x] & BIT(a)) || repeats < REPEATS))
#ifdef WRITEBACK
#define CANCONFIRM(a, x) (ADMITTED(x) && phase[a] >= 2 && G(a, x) > 0 && (G(a, x) != top[a] || C[x] < top[a]))
#else
#define CANCONFIRM(a, x) (ADMITTED(x) && phase[a] >= 2 && G(a, x) > 0 && (G(a, x) != top[a] || C[x] != top[a]) && OURS(a, x) && NOTPASSED(a, x))
#endif
#define CANRECREATE(a, x) (phase[a] > 0 && L[x] != ID(a))
#define CANRAISE(x) (sweeps < SWEEPS && ADMITTED(x))
#define CANDELETE(x) (SWEEPS > 0 && C[x] > 0 && (C[x] <= B[x] || SWEEPABOVE))
#ifdef SWEEPALL
#define SWEEPABOVE true
#else
#define SWEEPABOVE false
#endif
#define CANLOSE(x) (losses < LOSSES)
#define CANSNAP(x) (snaps < SNAPS)
#define CANRESTART(x) (restarts < RESTARTS)
#define CANREADMIT(x) (!ADMITTED(x))
#define CANBEGIN(k, x) (!ADMITTED(x) && (k == 1 || stage[k-1] > 0) && stage[k] == FIRST)
#ifdef EPOCHFIRST
#define FIRST 2
#define CANALLOT(k) (stage[k] == 0 && epoch < EPOCH - 1)
#else
#define FIRST 0
#ifdef NODEEPOCH
#define OTHER(k, x, o) (ADMITTED(x) && x != at[k] - 1 && x != o -> 1 : 0)
#if N == 3
#define ENOUGH(k, o) (OTHER(k, 0, o) + OTHER(k, 1, o) + OTHER(k, 2, o) >= READS)
#else
#define ENOUGH(k, o) (OTHER(k, 0, o) + OTHER(k, 1, o) + OTHER(k, 2, o) + OTHER(k, 3, o) + OTHER(k, 4, o) >= READS)
#endif
#ifndef READS
#define READS QUORUM
#endif
#define CANALLOT(k) (stage[k] == 1 && ENOUGH(k, N))
#define CANPROMISE(k) (stage[k] == 2 && ENOUGH(k, N))
#else
#define CANALLOT(k) (stage[k] == 1)
#endif
#endif
#if defined(NODEEPOCH) && !defined(NOPROMISE)
#define BEGUN(k, x) (at[k] == x + 1 && stage[k] == 3)
#else
#define BEGUN(k, x) (at[k] == x + 1 && raised[k] > 0 && stage[k] != 4 && stage[k] != 0)
#endif
#if defined(NONONCE)
#define CANADMIT(k, x) (BEGUN(k, x) && raised[k] * EPOCH > B[x])
#elif defined(LOOSEADMIT)
#define CANADMIT(k, x) (BEGUN(k, x) && pend[x] == k && raised[k] * EPOCH > B[x])
#else
#define CANADMIT(k, x) (BEGUN(k, x) && pend[x] == k && pendrun[x] && raised[k] * EPOCH > B[x])
#endif
#define CANARM(a) (phase[a] == 2 && (fence < top[a] || fence == top[a] && OWNSEAL(a) || GREATER || retakes < RETAKES))
#ifdef NOSEAL
#define OWNSEAL(a) true
#else
#define OWNSEAL(a) (sealed == a)
#endif
#ifdef GREATEST
#define GREATER true
#else
#define GREATER false
#endif

#if N == 3
#define NODES(X, a) X(a, 0) X(a, 1) X(a, 2)
#define ALLNODES(X) X(0) X(1) X(2)
#else
#define NODES(X, a) X(a, 0) X(a, 1) X(a, 2) X(a, 3) X(a, 4)
#define ALLNODES(X) X(0) X(1) X(2) X(3) X(4)
#endif
#if ATTEMPTS == 2
#define EACH(X) NODES(X, 1) NODES(X, 2)
#elif ATTEMPTS == 3
#define EACH(X) NODES(X, 1) NODES(X, 2) NODES(X, 3)
#else
#define EACH(X) NODES(X, 1) NODES(X, 2) NODES(X, 3) NODES(X, 4)
#endif

#define TRYGRANT(a, x) :: CANGRANT(a, x) -> m = a; n = x; goto grant
#define TRYCONFIRM(a, x) :: CANCONFIRM(a, x) -> m = a; n = x; goto confirm
#define TRYRECREATE(a, x) :: CANRECREATE(a, x) -> m = a; n = x; goto recreate
#define TRYRAISE(x) :: CANRAISE(x) -> n = x; goto raise
#define TRYDELETE(x) :: CANDELETE(x) -> n = x; goto delete
#define TRYLOSE(x) :: CANLOSE(x) -> n = x; goto lose
#define TRYSNAP(x) :: CANSNAP(x) -> n = x; goto snap
#define TRYRESTART(x) :: CANRESTART(x) -> n = x; goto restart
#define TRYREADMIT(x) :: CANREADMIT(x) -> n = x; goto readmit
#define TRYBEGIN(k, x) :: CANBEGIN(k, x) -> m = k; n = x; goto begin
#define TRYADMIT(k, x) :: CANADMIT(k, x) -> m = k; n = x; goto admit

/* c = how many nodes' replies make the condition true */
#define COUNT(cond) c = 0; i = 0; do :: i < N -> c = c + (cond -> 1 : 0); i++ :: else -> break od; i = 0

inline complete() {
	printf("attempt %d is complete with token %d\n", m, top[m]);
	assert(top[m] > before[m]);                     /* rises */
	i = 1;
	do
	:: i <= ATTEMPTS -> assert(i == m || phase[i] != 3 || top[i] != top[m]); i++    /* unique */
	:: else -> break
	od;
	phase[m] = 3; before[m] = 0;
	i = 1; c = 0;
	do
	:: i <= ATTEMPTS -> c = c + (phase[i] == 3 -> 1 : 0); i++
	:: else -> break
	od;
#ifdef REACHED
	assert(c < ATTEMPTS);
#endif
	i = 0; c = 0
}

/* decides what a taken reply leads to */
inline decide() {
	if
	:: phase[m] == 1 ->
		COUNT(G(m, i) > 0);
		if
		:: c >= NEED ->
			phase[m] = 2;
			do
			:: i < N -> top[m] = MAX(top[m], G(m, i)); i++
			:: else -> break
			od;
			i = 0
		:: else
		fi
	:: else
	fi;
#ifndef ARMED
	if
	:: phase[m] == 2 ->
		COUNT(G(m, i) == top[m]);       /* one that returned the token counts as confirmed */
#ifdef NOCONFIRM
		c = NEED;
#endif
		if
		:: c >= NEED -> complete()
		:: else
		fi
	:: else
	fi;
#endif
	c = 0
}

#define SWAP(v) c = v[x]; v[x] = v[y]; v[y] = c
#define SWAPGOT(a) c = G(a, x); G(a, x) = G(a, y); G(a, y) = c
#ifdef NODEEPOCH
#define K3(z) (P[z] << 26)
#else
#define K3(z) 0
#endif
#define K1(z) (C[z] + (B[z] << 8) + (arr[z] << 16) + (L[z] << 24))
#if ATTEMPTS > 2
#define K2(z) (G(1, z) + (G(2, z) << 8) + (G(3, z) << 16) + (marker[z] << 24) + (bound[z] << 25))
#else
#define K2(z) (G(1, z) + (G(2, z) << 8) + (marker[z] << 24) + (bound[z] << 25))
#endif
inline order(x, y) {
	if
	:: K1(x) > K1(y) || K1(x) == K1(y) && K2(x) + K3(x) > K2(y) + K3(y) ->
		SWAP(C); SWAP(B); SWAP(L); SWAP(arr); SWAP(marker); SWAP(bound);
		SWAPGOT(1); SWAPGOT(2);
#if ATTEMPTS > 2
		SWAPGOT(3);
#endif
#if ATTEMPTS > 3
		SWAPGOT(4);
#endif
#ifdef NODEEPOCH
		SWAP(P);
#endif
#if ADMINS
		SWAP(pend); SWAP(pendrun);
		i = 1;
		do
		:: i <= ADMINS ->
			if
			:: at[i] == x + 1 -> at[i] = y + 1
			:: at[i] == y + 1 -> at[i] = x + 1
			:: else
			fi;
			i++
		:: else -> break
		od;
		i = 0;
#endif
#if RESTARTS
		SWAP(sC); SWAP(sB); SWAP(sL); SWAP(smarker);
#if ADMINS
		SWAP(spend);
#endif
#endif
		c = 0
	:: else
	fi
}

inline sort() {
#ifdef SYM
	d_step {
#if N == 3
		order(0, 1); order(1, 2); order(0, 1)
#else
		order(0, 1); order(3, 4); order(2, 4); order(2, 3); order(1, 4);
		order(0, 3); order(0, 2); order(1, 3); order(1, 2)
#endif
	}
#else
	skip
#endif
}

active proctype System() {
#if START
	atomic {
		do
		:: n < N -> if :: C[n] = 0 :: C[n] = 1 fi; n++
		:: else -> break
		od;
		n = 0;
#if RESTARTS
		do
		:: n < N -> sC[n] = C[n]; n++
		:: else -> break
		od;
		n = 0;
#endif
		sort()
	}
#endif
end:
	atomic {
		if
		EACH(TRYGRANT)
#ifdef ARMED
		:: CANARM(1) -> m = 1; goto arm
		:: CANARM(2) -> m = 2; goto arm
#if ATTEMPTS > 2
		:: CANARM(3) -> m = 3; goto arm
#endif
		:: revokes < REVOKES && fence > 0 -> goto revoke
#else
		EACH(TRYCONFIRM)
#endif
#ifdef RECREATE
		EACH(TRYRECREATE)
#endif
#if SWEEPS
		ALLNODES(TRYRAISE) ALLNODES(TRYDELETE)
#endif
#if LOSSES
		ALLNODES(TRYLOSE)
#endif
#if RESTARTS
		ALLNODES(TRYRESTART)
#endif
#if SNAPS
		ALLNODES(TRYSNAP)
#endif
#if ADMINS
		NODES(TRYBEGIN, 1) NODES(TRYADMIT, 1) :: CANALLOT(1) -> m = 1; goto allot
#ifdef NODEEPOCH
		:: CANPROMISE(1) -> m = 1; goto promise
#if ADMINS > 1
		:: CANPROMISE(2) -> m = 2; goto promise
#endif
#endif
#if ADMINS > 1
		NODES(TRYBEGIN, 2) NODES(TRYADMIT, 2) :: CANALLOT(2) -> m = 2; goto allot
#endif
#if ADMINS > 2
		NODES(TRYBEGIN, 3) NODES(TRYADMIT, 3) :: CANALLOT(3) -> m = 3; goto allot
#endif
#elif LOSSES || RESTARTS
		ALLNODES(TRYREADMIT)
#endif
		fi;

grant:          /* acquire.lua, and a reply that arrives or not */
		c = 0;
		if
		:: FLOORS > 0 ->
			d_step { i = 0; do :: i < N -> c = MAX(c, C[i]); i++ :: else -> break od; i = 0 }
		:: c = 0
		fi;
		d_step {
			if
			:: phase[m] == 0 ->     /* the attempt begins: what is complete now must be below its token */
				phase[m] = 1;
				i = 1;
				do
				:: i <= ATTEMPTS -> before[m] = MAX(before[m], (phase[i] == 3 -> top[i] : 0)); i++
				:: else -> break
				od;
				i = 0;
				printf("attempt %d begins; the highest complete token is %d\n", m, before[m])
			:: else
			fi;
			if
			:: arr[n] & BIT(m) -> repeats++; printf("again: ")
			:: else -> arr[n] = arr[n] | BIT(m)
			fi;
#ifdef ARMED
			c = MAX(c, asked[m]);
#endif
			c = MAX(c, MAX(C[n], B[n])) + 1;
			assert(c < 250);        /* a bound of the model, not of the protocol */
			if
			:: c % EPOCH == 0       /* EXHAUSTED */
			:: else -> C[n] = c; L[n] = ID(m); printf("node %d grants attempt %d with counter %d\n", n, m, c)
			fi
		}
		if
		:: phase[m] == 1 && G(m, n) == 0 && c % EPOCH > 0 ->
			d_step { G(m, n) = c; c = 0; decide() }
		:: c = 0; printf("  (its reply comes too late or never)\n")
		fi;
		goto done;

confirm:        /* confirm.lua */
		skip;
		d_step {
#ifdef WRITEBACK
			C[n] = MAX(C[n], top[m]);
#else
			C[n] = top[m];
#endif
			printf("node %d confirms token %d of attempt %d\n", n, top[m], m)
		}
		if
		:: phase[m] == 2 -> d_step { G(m, n) = top[m]; decide() }
		:: skip
		fi;
		goto done;

#ifdef RECREATE
recreate:
		L[n] = ID(m);
		printf("attempt %d extends its lock on node %d, which had vanished\n", m, n);
		goto done;
#endif
#ifdef ARMED
arm:            /* fence.raise; the acknowledgement may be lost, and the attempt asks again */
		if
		:: fence < top[m] || GREATER ->
			d_step {
				printf("the fence stood at %d; attempt %d raises it to %d\n", fence, m, top[m]);
				fence = MAX(fence, top[m]); sealed = m
			};
			if
			:: d_step { complete() }
			:: skip
			fi
		:: else ->
			if
			:: fence == top[m] && OWNSEAL(m) -> d_step { complete() }
			:: else ->      /* phase 1 once more, above what is recorded */
				d_step {
					retakes++; phase[m] = 1; top[m] = 0; asked[m] = fence;
					do
					:: i < N -> G(m, i) = 0; arr[i] = arr[i] & ~BIT(m); i++
					:: else -> break
					od;
					i = 0;
					printf("the fence stands at %d: attempt %d takes its lock again above that\n", fence, m)
				}
			fi
		fi;
		goto done;
revoke:
		fence++; sealed = 0; revokes++;
		printf("an operator raises the fence to %d\n", fence);
		goto done;
#endif
#if SWEEPS
raise:          /* raise.lua: to the highest counter of any resource on any node */
		skip;
		d_step {
			sweeps++;
			c = 0;
			do
			:: i < N -> c = MAX(c, C[i]); i++
			:: else -> break
			od;
			i = 0
		}
		if
		:: c++                  /* another resource's is the highest */
		:: skip
#ifdef NEXTEPOCH
		:: epoch++; c = epoch * EPOCH
		:: c = epoch * EPOCH
#endif
		fi;
#ifndef SWEEPALL
		B[n] = MAX(B[n], c);
#endif
		printf("a sweep raises the base of node %d to %d\n", n, B[n]);
		goto done;
delete:
		C[n] = 0;
		printf("a sweep deletes the counter of node %d\n", n);
		goto done;
#endif
#if LOSSES
lose:
		skip;
		d_step {
			losses++; C[n] = 0; B[n] = 0; marker[n] = false; bound[n] = false;
#ifdef NODEEPOCH
			P[n] = 0;
#endif
#ifndef KEEPLOCKS
			L[n] = 0;
#endif
#if ADMINS
			pend[n] = 0; pendrun[n] = false;
#endif
			printf("node %d loses its data\n", n)
		}
		goto done;
#endif
#if RESTARTS
#if SNAPS
snap:
		skip;
		d_step {
			snaps++; sC[n] = C[n]; sB[n] = B[n]; sL[n] = L[n]; smarker[n] = marker[n];
#if ADMINS
			spend[n] = pend[n];
#endif
			printf("node %d saves a snapshot\n", n)
		}
		goto done;
#endif
restart:
		skip;
		d_step {
			restarts++; C[n] = sC[n]; B[n] = sB[n]; L[n] = sL[n]; marker[n] = smarker[n]; bound[n] = false;
#if ADMINS
			pend[n] = spend[n]; pendrun[n] = false;
#endif
			printf("node %d restarts from its snapshot: counter %d, base %d, lock of %d, marker %d\n", n, C[n], B[n], L[n], marker[n])
		}
		goto done;
#endif
#if ADMINS
begin:          /* admit_begin.lua */
		skip;
		d_step {
			stage[m] = MAX(stage[m], 1) + (stage[m] == 2 -> 1 : 0); at[m] = n + 1; pend[n] = m; pendrun[n] = true;
			printf("admission %d begins on node %d\n", m, n)
		}
		goto done;
#ifdef NODEEPOCH
allot:          /* epoch.lua on as many other nodes as a quorum; the highest epoch of a counter counts too */
		do
		:: i < N -> i++
		:: ENOUGH(m, i) -> break
		od;
		skip;
		d_step {
			c = 0; n = 0;
			do
			:: n < N -> c = (OTHER(m, n, i) == 1 -> MAX(MAX(P[n], B[n] / EPOCH), MAX(C[n] / EPOCH, c)) : c); n++
			:: else -> break
			od;
			raised[m] = c + 1; stage[m] = 2; n = 0; i = 0; c = 0;
			printf("admission %d goes for epoch %d\n", m, raised[m])
		}
		goto done;
promise:        /* the same; a second look shows that at one moment all of them had it */
		do
		:: i < N -> i++
		:: ENOUGH(m, i) -> break
		od;
		skip;
		d_step {
			n = 0;
			do
			:: n < N -> P[n] = (OTHER(m, n, i) == 1 -> MAX(P[n], raised[m]) : P[n]); n++
			:: else -> break
			od;
			stage[m] = 3; n = 0; i = 0;
			printf("epoch %d is promised to admission %d\n", raised[m], m)
		}
		goto done;
#else
allot:          /* next_epoch */
		skip;
		d_step {
			epoch++; raised[m] = epoch; stage[m] = 2;
			printf("admission %d has epoch %d\n", m, epoch)
		}
		goto done;
#endif
admit:          /* admit.lua */
		skip;
		d_step {
			marker[n] = true; bound[n] = true; B[n] = raised[m] * EPOCH; pend[n] = 0; pendrun[n] = false;
			printf("admission %d of node %d ends: base %d\n", m, n, B[n]);
			stage[m] = 4; raised[m] = 0; at[m] = 0
		}
		goto done;
#elif LOSSES || RESTARTS
readmit:
		skip;
		d_step {
			marker[n] = true; bound[n] = true;
#if defined(READREPAIR)
			c = 0;
			do
			:: i < N -> c = (i != n -> MAX(c, C[i]) : c); i++
			:: else -> break
			od;
			i = 0;
			C[n] = MAX(C[n], c); c = 0;
#elif !defined(MARKERONLY)
			epoch++; B[n] = epoch * EPOCH;
#endif
			printf("node %d is admitted again: counter %d, base %d\n", n, C[n], B[n])
		}
		goto done;
#endif
done:
		skip;
		d_step { m = 0; n = 0; c = 0; i = 0 }
		sort();
		goto end
	}
}
