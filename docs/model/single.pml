/*
 * The only node of a group in package lock, which is durable, for the spin model checker: it is admitted at once after a
 * restart in which it lost nothing; else after a quarantine of TTL. Claimed: at no time do two clients both believe that
 * they have the lease, and tokens rise. See exclusion.pml for what a tick is.
 *
 * A restart keeps the node's data; at most COPIES times it brings back a copy that was made at any time before. A copy is
 * whole up to its moment, and its lock ends when it did: Redis keeps the time at which a key ends. No restart keeps a run:
 * what was loaded for an incarnation, or for an admission that has begun.
 *
 * Two admissions may be under way: each reads the node and writes its nonce, raises the epoch, and is at once if the node
 * was admitted as durable, by an epoch of which that is the next, and no fence stands above the node's counter. ARMED: who
 * gets a lease raises the fence with it.
 * SETTINGS: a node that does not write through (0 at first, or 1) may lose the last of its data; that changes once.
 *
 * A macro removes one safeguard each; every such run must fail:
 *   ANYEPOCH    the epoch is not compared
 *   NOFENCE     no look at the fence
 *   UNSEEN      (SETTINGS=1) no look at the settings of now
 *   UNNOTED     (SETTINGS=0) no look at the settings of its last admission
 * and so must this, which is beyond what is promised:
 *   EXTENDS     (COPIES) a copy is older than a renewal, which raises no fence
 * BEFORE: only copies that are older than the last admission. REACHED fails where a node is admitted at once that has a lock.
 */
#ifndef TTL
#define TTL 2
#endif
#ifndef COPIES
#define COPIES 0
#endif
#ifndef RESTARTS
#define RESTARTS 2
#endif
#ifndef ADMINS
#define ADMINS 3        /* admissions that begin */
#endif
#ifndef EXTENDS
#define EXTENDS 0
#endif
#ifndef ATTEMPTS
#define ATTEMPTS 2
#endif

/* the node's data, and the same of the copy */
byte L, T, base = 1, count;
byte cL, cT, cbase, ccount;
#ifdef SETTINGS
bool durable = SETTINGS;
#else
bool durable = true;
#endif
bool cdurable, copied;
#ifdef SETTINGS
bool through = SETTINGS, changed;
#endif

/* its run */
bool live = true;        /* its incarnation's scripts are there */
byte pending = 2;       /* the admission that has begun; 2: none */
byte Q;

/* PostgreSQL */
byte epoch = 1, fence;

/* admissions 0 and 1 */
byte step[2];           /* 0 idle, 1 its nonce is written, 2 the epoch is raised */
byte rBase[2];          /* what it read */
byte mine[2];           /* its epoch */
bool intact[2];

/* attempts from 1 on */
byte ph[ATTEMPTS + 1];  /* 0 idle, 1 sent, 3 holds, 4 over */
byte v[ATTEMPTS + 1];
bool arr[ATTEMPTS + 1];

byte top, restarts, restored, extends, admins;
byte m, i;
bool c;

#define MAX(a, b) ((a) > (b) -> (a) : (b))
#define CANBEGIN(a) (ph[a] == 0 && (a == 1 || ph[a-1] > 0))
#define CANGRANT(a) (live && ph[a] > 0 && !arr[a] && (L == 0 || L == a))
#define CANEXTEND(a) (live && ph[a] == 3 && L == a && extends < EXTENDS)
#define CANADMITBEGIN(x) (step[x] == 0 && (x == 0 || step[0] > 0) && admins < ADMINS && !live && (pending == 2 || Q == 0))
#define CANADMIT(x) (step[x] == 2 && pending == x && Q == 0 && base < mine[x])
#define CANDROP(x) (step[x] > 0 && pending != x)
#define TRYBEGIN(a) :: CANBEGIN(a) -> m = a; goto begin
#define TRYGRANT(a) :: CANGRANT(a) -> m = a; goto grant
#define TRYEXTEND(a) :: CANEXTEND(a) -> m = a; goto extend
#define TRYADMITBEGIN(x) :: CANADMITBEGIN(x) -> m = x; goto admitbegin
#define TRYRAISE(x) :: step[x] == 1 -> m = x; goto raise
#define TRYSHORTEN(x) :: step[x] == 2 && pending == x && intact[x] && Q > 0 -> m = x; goto shorten
#define TRYADMIT(x) :: CANADMIT(x) -> m = x; goto admit
#define TRYDROP(x) :: CANDROP(x) -> m = x; goto drop
#define BOTH(X) X(0) X(1)
#if ATTEMPTS == 2
#define OVER (ph[1] == 4 && ph[2] == 4)
#define ALL(X) X(1) X(2)
#else
#define OVER (ph[1] == 4 && ph[2] == 4 && ph[3] == 4)
#define ALL(X) X(1) X(2) X(3)
#endif
#ifdef BEFORE
#define CANRESTORE (cbase < base)
#else
#define CANRESTORE true
#endif

inline endrun() { live = false; pending = 2; Q = 0; restarts++ }

inline fade(l, t) {
	if
	:: t > 1 -> t = t - 1
	:: t == 1 -> t = 0; l = 0
	:: else
	fi
}

active proctype System() {
end:
	atomic {
		if
		ALL(TRYBEGIN) ALL(TRYGRANT)
#if EXTENDS
		ALL(TRYEXTEND)
#endif
		BOTH(TRYADMITBEGIN) BOTH(TRYRAISE) BOTH(TRYSHORTEN) BOTH(TRYADMIT) BOTH(TRYDROP)
		:: restarts < RESTARTS -> goto restart
#if COPIES
		:: !copied -> goto copy
#ifdef SETTINGS
		:: restarts < RESTARTS && copied && !through -> goto restore
#else
		:: restarts < RESTARTS && copied && restored < COPIES && CANRESTORE -> goto restore
#endif
#endif
#ifdef SETTINGS
		:: !changed -> goto change
#endif
		:: goto tick
		fi;

tick:
		skip;
		d_step {
			printf("-- tick\n");
			fade(L, T); fade(cL, cT);
			Q = (Q > 0 -> Q - 1 : 0);
			i = 1;
			do
			:: i <= ATTEMPTS ->
				v[i] = (v[i] > 0 -> v[i] - 1 : 0);
				if
				:: v[i] == 0 && (ph[i] == 1 || ph[i] == 3) -> ph[i] = 4; printf("attempt %d is over: its time has run out\n", i)
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
		d_step { ph[m] = 1; v[m] = TTL; printf("attempt %d sends its message\n", m) }
		goto done;
grant:          /* acquire.lua; confirmed, and armed where that is so */
		skip;
		d_step {
			arr[m] = true; L = m; T = TTL; count++;
			assert(count < 8);
			printf("the node grants attempt %d, and has counted to %d.%d\n", m, base, count)
		}
		if
		:: ph[m] == 1 ->
			d_step {
				ph[m] = 3;
#ifdef ARMED
				fence = base * 8 + count;
#endif
				printf("attempt %d holds the lease for %d ticks\n", m, v[m]);
				assert(base * 8 + count > top);         /* tokens rise */
				top = base * 8 + count;
				i = 1;
				do
				:: i <= ATTEMPTS -> assert(i == m || ph[i] != 3); i++    /* exclusion */
				:: else -> break
				od;
				i = 0
			}
		:: printf("  (its reply comes too late or never)\n")
		fi;
		goto done;
#if EXTENDS
extend:
		skip;
		d_step { extends++; T = TTL; v[m] = TTL; printf("attempt %d is extended\n", m) }
		goto done;
#endif
restart:
		skip;
		d_step { endrun(); printf("the node restarts with its data\n") }
		goto done;
#if COPIES
copy:
		skip;
		d_step {
			copied = true; cL = L; cT = T; cbase = base; ccount = count; cdurable = durable;
			printf("a copy is made\n")
		}
		goto done;
restore:
		restored++;
		d_step {
			endrun();
			L = cL; T = cT; base = cbase; count = ccount; durable = cdurable;
			printf("the node restarts with the copy\n")
		}
		goto done;
#endif
#ifdef SETTINGS
change:
		skip;
		d_step { changed = true; through = !through; printf("the node writes through: %d\n", through) }
		goto done;
#endif
admitbegin:     /* Locker.states, admit_begin.lua */
		skip;
		d_step {
			admins++; step[m] = 1; pending = m; Q = TTL;
			rBase[m] = (durable -> base : 0);
			printf("admission %d begins\n", m)
		}
		goto done;
raise:          /* Locker.newBase, Locker.unbroken */
		skip;
		d_step {
			step[m] = 2;
			c = rBase[m] > 0;
#ifdef UNNOTED
			c = true; rBase[m] = base;
#endif
			epoch = MAX(epoch, base) + 1; mine[m] = epoch;
#ifndef ANYEPOCH
			c = c && epoch == rBase[m] + 1;
#endif
#ifndef NOFENCE
			c = c && fence <= base * 8 + count;
#endif
#if defined(SETTINGS) && !defined(UNSEEN)
			c = c && through;
#endif
			intact[m] = c;
			rBase[m] = 0; c = false;
			printf("admission %d raises epoch %d; at once: %d\n", m, epoch, intact[m])
		}
		goto done;
shorten:        /* shorten.lua, in the run of the admission's beginning */
		skip;
		d_step {
			Q = 0; printf("admission %d ends the quarantine\n", m);
#ifdef REACHED
			assert(L == 0 || ph[L] != 3 || v[L] == 0);
#endif
		}
		goto done;
admit:          /* admit.lua, likewise */
		skip;
		d_step {
			live = true; base = mine[m]; count = 0; pending = 2;
			step[m] = 0; mine[m] = 0; intact[m] = false;
			durable = true;
#ifdef SETTINGS
			durable = through;
#endif
			printf("admission %d admits the node with epoch %d\n", m, base)
		}
		goto done;
drop:
		skip;
		d_step { step[m] = 0; mine[m] = 0; intact[m] = false; rBase[m] = 0; printf("admission %d is void\n", m) }
		goto done;
done:
		skip;
		d_step { m = 0; i = 0 }
		if
		:: OVER         /* nothing is left to go wrong */
		:: else -> goto end
		fi
	}
}
