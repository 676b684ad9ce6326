/*
 * The token protocol of package lock, for the spin model checker.
 *
 * Claim: two successful acquisitions of one resource have different tokens, and
 * if one completed before the other began, its token is lower. Nothing is
 * assumed about time: a lock may vanish from a node at any instant, a message
 * may come late, be lost, or arrive twice, an attempt may be abandoned, and a
 * node may lose its data up to LOSSES times.
 *
 * A macro removes or changes one safeguard each; every such run must fail:
 *   NOCONFIRM   the highest counter is the token, without phase 2
 *   OWNERONLY   confirm asks for the owner only, not for the counter
 *   NOOWNER     confirm asks for the counter only, not for the owner
 *   WEAKQUORUM  quorum - 1
 *   SHAREDOWNER attempts share one owner id
 *   NOMARKER    a node that lost its data goes on granting
 *   MARKERONLY  a lost node is admitted again without a new epoch
 *   SWEEPALL    a sweep deletes counters above the base
 *   NOFENCE     (with ARMED) arming succeeds without looking (GREATEST)
 *
 * ARMED: the fence decides by compare-and-set; no confirm and no marker needed.
 *
 * Messages are not queued: a node acts on an attempt's message when it arrives,
 * at any time and any number of times up to a bound while the attempt is alive
 * or after it (that is "late" and "repeated"); a reply is taken at that moment,
 * or never (that is "lost").
 *
 * The group commit runs the same steps of several resources in one atomic
 * script. Resources share no variable here, so such a batch is one of the
 * interleavings of single steps.
 */
#ifndef N
#define N 3
#endif
#ifndef ATTEMPTS
#define ATTEMPTS 3
#endif
#ifndef LOSSES
#define LOSSES 0
#endif
#ifndef REPEATS
#define REPEATS 1       /* repeated phase-1 messages in the whole run */
#endif
#ifndef START
#define START 0         /* 1: counters may start unlevel, as failed attempts leave them */
#endif
#define QUORUM (N/2 + 1)
#define EPOCH 8         /* stands for 2^32 */
#ifdef WEAKQUORUM
#define NEED (QUORUM - 1)
#else
#define NEED QUORUM
#endif

byte C[N];              /* counter */
byte base[N];
byte L[N];              /* owner; 0: no lock */
bool admitted[N] = true;
byte epoch = 0;
byte losses = 0, repeats = 0;
byte fenceAt = 0;

/* what is known of the acquisitions that are complete */
byte tokenOf[ATTEMPTS + 1];
byte highest = 0;

#define MAX(a, b) ((a) > (b) -> (a) : (b))
#ifdef SHAREDOWNER
#define ID 1
#else
#define ID me
#endif

#ifdef NOOWNER
#define OURS(n) true
#else
#define OURS(n) (L[n] == ID)
#endif
#ifdef OWNERONLY
#define NOTPASSED(n, t) true
#else
#define NOTPASSED(n, t) (MAX(C[n], base[n]) <= t)
#endif

/* where something can still arrive */
#define MAY(n) (!sent[n] || repeats < REPEATS || (got[n] > 0 && got[n] != top && top > 0))
#if N > 3
inline pick(i) { if :: MAY(0) -> i = 0 :: MAY(1) -> i = 1 :: MAY(2) -> i = 2 :: MAY(3) -> i = 3 :: MAY(4) -> i = 4 fi }
#else
inline pick(i) { if :: MAY(0) -> i = 0 :: MAY(1) -> i = 1 :: MAY(2) -> i = 2 fi }
#endif

/* phase 1 on a node: r is the counter, or 0 for a refusal */
inline grant(n, r) {
	r = 0;
	if
	:: admitted[n] && (L[n] == 0 || L[n] == ID) ->
		C[n] = MAX(C[n], base[n]) + 1; L[n] = ID; r = C[n]
	:: else
	fi
}

inline confirm(n, t, ok) {
	ok = false;
	if
	:: admitted[n] && OURS(n) && NOTPASSED(n, t) -> C[n] = t; ok = true
	:: else
	fi
}

#ifdef NOFENCE
#define RAISABLE true
#else
#define RAISABLE (fenceAt < top)
#endif

proctype Attempt(byte me) {
	byte got[N];            /* counters of the grants whose replies arrived */
	bool sent[N];
	byte granted = 0, confirmed = 0, top = 0, floor = 0;
	byte i = 0, r = 0;
	bool ok = false;

	/* the attempt begins: whatever is complete now must be below its token */
	atomic { floor = highest }

	/* phase 1: messages arrive in any order; replies may be lost */
	do
	:: granted < NEED ->
		atomic {
			pick(i);
			if
			:: !sent[i] -> sent[i] = true
			:: sent[i] && repeats < REPEATS -> repeats++
			fi;
			grant(i, r);
			if
			:: r > 0 && got[i] == 0 -> got[i] = r; granted++
			:: skip            /* the reply is lost, or comes twice */
			fi;
			r = 0; i = 0
		}
	:: granted >= NEED -> break
	:: goto over               /* abandoned */
	od;
	atomic {
		i = 0;
		do
		:: i < N -> top = MAX(top, got[i]); i++
		:: else -> break
		od
	}
#if defined(ARMED)
	atomic {
		if
		:: RAISABLE -> fenceAt = MAX(fenceAt, top)
		:: else -> goto over
		fi;
		goto complete
	}
#elif defined(NOCONFIRM)
	goto complete;
#else
	/* a node that returned the token counts as confirmed */
	atomic {
		i = 0;
		do
		:: i < N -> if :: got[i] == top -> confirmed++ :: else fi; i++
		:: else -> break
		od
	}
	i = 0;
	do
	:: confirmed >= NEED -> goto complete
	:: confirmed < NEED ->
		atomic {
			pick(i);
			if
			:: got[i] > 0 && got[i] != top ->
				confirm(i, top, ok);
				if
				:: ok -> got[i] = top; confirmed++
				:: ok -> got[i] = 0     /* the reply is lost */
				:: !ok -> got[i] = 0
				fi;
				ok = false
			:: sent[i] && repeats < REPEATS -> /* a phase-1 message once more */
				repeats++; grant(i, r); r = 0
			fi
		}
	:: goto over
	od;
#endif
complete:
	atomic {
		assert(top > floor);            /* rises */
		r = 1;
		do
		:: r <= ATTEMPTS -> assert(tokenOf[r] != top); r++   /* unique */
		:: else -> break
		od;
		tokenOf[me] = top;
		highest = MAX(highest, top)
	}
over:
	/* what no later step looks at must not tell states apart */
	atomic {
		i = 0;
		do
		:: i < N -> got[i] = 0; sent[i] = false; i++
		:: else -> break
		od;
		granted = 0; confirmed = 0; top = 0; floor = 0; i = 0; r = 0; ok = false
	}
	/* late messages: phase 1 may still arrive where it has not, or again */
	do
	:: atomic { repeats < REPEATS ->
		pick(i);
		repeats++; grant(i, r); r = 0 }
	:: break
	od
}

/* time: a lock may vanish at any instant */
proctype Expiry() {
	byte n;
end:	do
	:: atomic { L[0] != 0 -> L[0] = 0 }
	:: atomic { L[1] != 0 -> L[1] = 0 }
	:: atomic { L[2] != 0 -> L[2] = 0 }
#if N > 3
	:: atomic { L[3] != 0 -> L[3] = 0 }
	:: atomic { L[4] != 0 -> L[4] = 0 }
#endif
	od
}

#if defined(NOMARKER) || defined(ARMED)
#define STAYS true
#else
#define STAYS false
#endif
#ifdef MARKERONLY
#define RAISED 0
#else
#define RAISED 1
#endif

/* loss of a node's hash, and its way back */
inline lose(n) {
	losses++; C[n] = 0; base[n] = 0; L[n] = 0;
	admitted[n] = STAYS
}

inline admit(n) {
	epoch = epoch + RAISED; base[n] = epoch * EPOCH;
	admitted[n] = true
}

proctype Disaster() {
end:	do
	:: atomic { losses < LOSSES -> if :: lose(0) :: lose(1) :: lose(2) fi }
	:: atomic { !admitted[0] -> admit(0) }
	:: atomic { !admitted[1] -> admit(1) }
	:: atomic { !admitted[2] -> admit(2) }
	od
}

#ifndef SWEEPS
#define SWEEPS 0
#endif
byte sweeps = 0;

/* raises the base to the counter and deletes it, as a sweep does: another
   resource's counter may be the highest, so the base may go beyond by one */
inline sweep(n) {
	sweeps++;
#ifndef SWEEPALL
	base[n] = MAX(C[n], base[n]);
	if :: base[n] = base[n] + 1 :: skip fi;
#endif
	C[n] = 0
}

proctype Sweeper() {
end:	do
	:: atomic { sweeps < SWEEPS && admitted[0] -> sweep(0) }
	:: atomic { sweeps < SWEEPS && admitted[1] -> sweep(1) }
	:: atomic { sweeps < SWEEPS && admitted[2] -> sweep(2) }
	od
}

init {
	byte k = 1;
	atomic {
#if START
		if :: C[0] = 0 :: C[0] = 1 fi;
		if :: C[2] = 0 :: C[2] = 1 fi;
#endif
		run Expiry();
#if LOSSES
		run Disaster();
#endif
#if SWEEPS
		run Sweeper();
#endif
		do
		:: k <= ATTEMPTS -> run Attempt(k); k++
		:: else -> break
		od
	}
}
