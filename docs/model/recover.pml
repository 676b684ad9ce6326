/*
 * The recovery above a token of a group in package lock whose nodes keep the epoch, for the spin model checker. Claimed: at
 * no time do two clients both believe that they have the lease, and tokens rise. See exclusion.pml for what a tick is.
 *
 * A node loses its run, and its data or not. An attempt takes locks and counters, one node after the other; from a quorum
 * it gets the highest counter, which these have to confirm. What a node remembers, counters, base and promised epoch, is one
 * number here.
 *
 * Where most are lost, an operator names a token: the highest that was ever issued, or a higher one. WRONG: or any, where a
 * node that answers remembers the highest. The recovery asks nodes, some of which may be away. It goes on where a quorum
 * answers, none is admitted, and the token is above all that those which answer remember. It begins to admit the lost ones,
 * each with a quarantine of TTL, asks again when that is over, and admits them with the token as their base. It may end at
 * any time; another one begins anew.
 *
 * A macro removes one safeguard each; every such run must fail:
 *   NOWAIT     nodes are admitted at once
 *   SHORT      the quarantine is a tick less
 *   NOREFUSAL  (WRONG) what nodes remember is not asked for
 *   WORD       (WRONG) any token where no node that answers remembers the highest: the operator's word counts there
 * REACHED fails where the last attempt holds the lease after a recovery.
 */
#ifndef N
#define N 3
#endif
#ifndef TTL
#define TTL 2
#endif
#ifndef LOSSES
#define LOSSES 2
#endif
#ifndef ATTEMPTS
#define ATTEMPTS 2
#endif
#define QUORUM (N/2 + 1)
#ifdef NOWAIT
#define QUARANTINE 0
#elif defined(SHORT)
#define QUARANTINE (TTL - 1)
#else
#define QUARANTINE TTL
#endif
#ifndef SPARE
#define SPARE 1         /* how far above the highest token an operator may go */
#endif
#ifndef RECOVERIES
#define RECOVERIES 2
#endif
#define BIT(x) (1 << (x))
#define MAX(a, b) ((a) > (b) -> (a) : (b))

#define ADMITTED 0
#define LOST 1
#define BEGUN 2

byte L[N], T[N], is[N], Q[N], knows[N] = 1;
byte arr[N], gr[N];     /* attempts whose message has arrived; whose reply was taken, one bit each */

byte ph[ATTEMPTS + 1];  /* 0 idle, 1 sent, 3 holds, 4 over */
byte v[ATTEMPTS + 1];
byte most[ATTEMPTS + 1]; /* the highest counter of a reply */

byte top = 1, losses, recoveries;
byte step;              /* of the recovery: 0 none, 1 it has asked, 2 its admissions have begun, 3 it has asked again */
byte above, chosen;     /* its token; its nodes, one bit each */
byte m, n, c, i;

#define CANBEGIN(a) (ph[a] == 0 && (a == 1 || ph[a-1] > 0))
#define CANGRANT(a, x) (is[x] == ADMITTED && ph[a] > 0 && !(arr[x] & BIT(a)) && (L[x] == 0 || L[x] == a))
#define CANLOSE(x) (losses < LOSSES && is[x] == ADMITTED)
#define CANADMIT(x) (step == 3 && (chosen & BIT(x)) && is[x] == BEGUN && Q[x] == 0)
#define TRYBEGIN(a) :: CANBEGIN(a) -> m = a; goto begin
#define TRYGRANT(a, x) :: CANGRANT(a, x) -> m = a; n = x; goto grant
#define TRYLOSE(x) :: CANLOSE(x) -> n = x; goto lose
#define TRYADMIT(x) :: CANADMIT(x) -> n = x; goto admit
#if N == 1
#define NODES(X, a) X(a, 0)
#define EACHNODE(X) X(0)
#else
#define NODES(X, a) X(a, 0) X(a, 1) X(a, 2)
#define EACHNODE(X) X(0) X(1) X(2)
#endif
#define ALL(X) X(1) X(2)
#define EACH(X) NODES(X, 1) NODES(X, 2)
#define WAITED(x) (!(chosen & BIT(x)) || is[x] != BEGUN || Q[x] == 0)
#if N == 1
#define OUTLASTED WAITED(0)
#else
#define OUTLASTED (WAITED(0) && WAITED(1) && WAITED(2))
#endif

/* c: which nodes answer, one bit each; then i: how many; then m: how many of them are admitted; c = 255: refused */
inline asked() {
	c = 0; n = 0;
	do
	:: n < N -> if :: c = c | BIT(n) :: skip fi; n++
	:: else -> break
	od;
	skip;
	d_step {
		i = 0; m = 0; n = 0;
		do
		:: n < N ->
			if
			:: c & BIT(n) -> i++;
				if
				:: is[n] == ADMITTED -> m++
				:: else
				fi;
#ifndef NOREFUSAL
				if
				:: knows[n] >= above -> c = 255; break
				:: else
				fi
#endif
			:: else
			fi;
			n++
		:: else -> break
		od;
		if
		:: i < QUORUM || m >= QUORUM -> c = 255
		:: else
		fi;
		i = 0; m = 0; n = 0
	}
}

inline order(x, y) {
	if
	:: (L[x] + (T[x] << 2) + (is[x] << 5) + (Q[x] << 8) + (knows[x] << 11) + (arr[x] << 15) + (gr[x] << 18) + (((chosen >> x) & 1) << 22)) >
	   (L[y] + (T[y] << 2) + (is[y] << 5) + (Q[y] << 8) + (knows[y] << 11) + (arr[y] << 15) + (gr[y] << 18) + (((chosen >> y) & 1) << 22)) ->
		c = L[x]; L[x] = L[y]; L[y] = c; c = T[x]; T[x] = T[y]; T[y] = c; c = is[x]; is[x] = is[y]; is[y] = c;
		c = Q[x]; Q[x] = Q[y]; Q[y] = c; c = knows[x]; knows[x] = knows[y]; knows[y] = c;
		c = arr[x]; arr[x] = arr[y]; arr[y] = c; c = gr[x]; gr[x] = gr[y]; gr[y] = c;
		chosen = chosen & ~(BIT(x) | BIT(y)) | ((chosen >> x) & 1) << y | ((chosen >> y) & 1) << x;
		c = 0
	:: else
	fi
}

active proctype System() {
end:
	atomic {
		if
		ALL(TRYBEGIN) EACH(TRYGRANT) EACHNODE(TRYLOSE) EACHNODE(TRYADMIT)
		:: step == 0 && recoveries < RECOVERIES && losses > 0 -> goto ask
		:: step == 1 -> goto write
		:: step == 2 && OUTLASTED -> goto again
		:: step > 0 -> goto quit
		:: goto tick
		fi;

tick:
		skip;
		d_step {
			printf("-- tick\n");
			do
			:: n < N ->
				Q[n] = (Q[n] > 0 -> Q[n] - 1 : 0);
				if
				:: T[n] > 1 -> T[n] = T[n] - 1
				:: T[n] == 1 -> T[n] = 0; L[n] = 0
				:: else
				fi;
				n++
			:: else -> break
			od;
			i = 1;
			do
			:: i <= ATTEMPTS ->
				v[i] = (v[i] > 0 -> v[i] - 1 : 0);
				if
				:: v[i] == 0 && (ph[i] == 1 || ph[i] == 3) -> ph[i] = 4; most[i] = 0; printf("attempt %d is over: its time has run out\n", i)
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
		d_step { ph[m] = 1; v[m] = TTL; printf("attempt %d sends its first message\n", m) }
		goto done;
grant:          /* acquire.lua; with the last reply confirm.lua */
		skip;
		d_step {
			arr[n] = arr[n] | BIT(m); L[n] = m; T[n] = TTL; knows[n]++;
			printf("node %d grants attempt %d, and has counted to %d\n", n, m, knows[n])
		}
		if
		:: ph[m] == 1 ->
			d_step {
				gr[n] = gr[n] | BIT(m); most[m] = MAX(most[m], knows[n]);
				c = 0; i = 0;
				do
				:: i < N -> c = c + ((gr[i] & BIT(m)) -> 1 : 0); i++
				:: else -> break
				od;
				if
				:: c >= QUORUM ->
					c = 0; i = 0;
					do
					:: i < N ->
						if
						:: (gr[i] & BIT(m)) && is[i] == ADMITTED && L[i] == m && knows[i] <= most[m] -> knows[i] = most[m]; c++
						:: else
						fi;
						i++
					:: else -> break
					od;
					if
					:: c >= QUORUM ->
						ph[m] = 3;
						printf("attempt %d holds the lease with token %d\n", m, most[m]);
						assert(most[m] > top);          /* tokens rise */
						top = most[m];
						assert(ph[3 - m] != 3);         /* exclusion */
#ifdef REACHED
						assert(m != ATTEMPTS || recoveries == 0 || ph[1] != 4);
#endif
					:: else -> ph[m] = 4; v[m] = 0; printf("attempt %d is not confirmed\n", m)
					fi;
					most[m] = 0
				:: else
				fi;
				c = 0; i = 0
			}
		:: printf("  (its reply comes too late or never)\n")
		fi;
		goto done;
lose:
		losses++;
		d_step { is[n] = LOST; Q[n] = 0; gr[n] = 0 }
		if
		:: d_step { L[n] = 0; T[n] = 0; knows[n] = 0; printf("node %d loses its data\n", n) }
		:: d_step { printf("node %d loses its run\n", n) }
		fi;
		goto done;
ask:            /* Locker.recoverable */
		above = top; recoveries++;
#ifdef WRONG
		above = 1;
#endif
		i = 0;
		do
		:: above < top + SPARE -> above++
		:: break
		od;
		if
		:: above == 0 -> above = 1
		:: else
		fi;
		printf("a recovery above %d begins\n", above);
		asked();
#if defined(WRONG) && !defined(WORD)
		skip;
		d_step {
			n = 0; m = 0;
			do
			:: n < N -> m = m | (c & BIT(n) && knows[n] >= top); n++
			:: else -> break
			od;
			c = (above < top && !m -> 255 : c);
			n = 0; m = 0
		}
#endif
		if
		:: c == 255 -> above = 0; printf("  (and is refused)\n")
		:: else -> chosen = c; step = 1
		fi;
		goto done;
write:          /* admit_begin.lua, on each of its nodes that are lost */
		skip;
		d_step {
			n = 0;
			do
			:: n < N ->
				if
				:: (chosen & BIT(n)) && is[n] != ADMITTED -> is[n] = BEGUN; Q[n] = QUARANTINE
				:: else -> chosen = chosen & ~BIT(n)
				fi;
				n++
			:: else -> break
			od;
			step = 2; printf("its admissions have begun\n")
		}
		goto done;
again:          /* Locker.recoverable */
		asked();
		if
		:: c == 255 -> goto quit
		:: else -> step = 3
		fi;
		goto done;
admit:          /* admit.lua */
		skip;
		d_step { is[n] = ADMITTED; knows[n] = MAX(knows[n], above); chosen = chosen & ~BIT(n); printf("node %d is admitted above %d\n", n, above) }
		goto done;
quit:
		skip;
		d_step { step = 0; above = 0; chosen = 0; printf("the recovery is over\n") }
		goto done;
done:
		skip;
		d_step { m = 0; n = 0; c = 0; i = 0 }
#if N == 3
		d_step { order(0, 1); order(1, 2); order(0, 1) }
#endif
		if
		:: ph[1] == 4 && ph[2] == 4             /* nothing is left to go wrong */
		:: else -> goto end
		fi
	}
}
