/*
 * The fence of one resource whose row may be retired, for the spin model checker. Its tokens come from a source that
 * forgets all it has issued, at any time: each acquisition begins at token 1 and goes on above what arming tells it.
 *
 * Claimed: two acquisitions never have one token, a later one has a higher token, and when arming a token has ended no
 * write under an older one comes any more.
 *
 * An acquisition takes the resource's turn (its row in fence.arms), reads the fence or else the floor, raises and commits;
 * then it drains the keys of the grants before it, in a step of its own, and may die before that. Its writers lock the
 * grant's key, read the fence, and write at any time later, also when the grant has ended. Retiring is one
 * transaction. Who waits for a row of fence.arms that is deleted meanwhile finds none.
 *
 * See migrations/fence/code/retire.sql. A macro removes one safeguard each; every such run must fail:
 *   NOFLOOR    nothing is left of a retired fence
 *   EARLY      the floor is read before the turn is taken
 *   NOLOOP     who waited for a turn that was deleted goes on without one
 *   NOTURN     retiring takes no turn
 *   NOKEYS     retiring does not look whether writers are in flight
 *   CURRENT    it looks at the current grant's alone
 * REACHED fails where the last acquisition can be armed after a fence was retired.
 */
#ifndef HOLDERS
#define HOLDERS 3
#endif
#ifndef RETIRES
#define RETIRES 2
#endif
#define NONE 255
#define TOKENS 7      /* the highest token that there can be, and one */

byte row;             /* the recorded token; 0: there is no row */
byte owner = NONE;    /* whose grant it is */
bool ended;
byte undrained;       /* a bit for each grant */
byte flr;

bool arms;            /* the row whose lock is the turn */
byte turn = NONE;
byte life;            /* how often it was deleted */

byte writing[HOLDERS];   /* writers that hold the key of a grant */
bool keyed[HOLDERS];     /* it is held exclusively */
byte token[HOLDERS];     /* of a grant whose raise is committed */
bool issued[TOKENS];
byte armed;           /* the highest token whose arming has ended */
byte retired;

inline take_turn(me) {
  byte then;
  do
  :: atomic { arms && turn == NONE -> turn = me; break }
  :: atomic { !arms -> arms = true; turn = me; break }
  :: atomic { arms && turn != NONE -> then = life };
     atomic { turn == NONE || life != then ->
       if
       :: life == then -> turn = me; break
       :: life != then ->
#ifdef NOLOOP
          break
#else
          skip
#endif
       fi }
  od
}

inline give_turn(me) {
  if
  :: turn == me -> turn = NONE
  :: else
  fi
}

proctype Writer(byte id) {
  bool passed;
  atomic { !keyed[id] -> writing[id]++ };
  passed = row == token[id] && owner == id && !ended;
  atomic {
    if
    :: passed -> assert(token[id] >= armed)
    :: else
    fi;
    writing[id]--
  }
}

proctype Holder(byte id) {
  byte mine = 1, was, before, f, drains, k;
  before = armed;
again:
#ifdef EARLY
  f = flr;
#endif
  take_turn(id);
#ifndef EARLY
  f = flr;
#endif
  if
  :: atomic { row > 0 && row >= mine -> mine = row + 1; give_turn(id); goto again }
  :: atomic { row == 0 && f >= mine -> mine = f + 1; give_turn(id); goto again }
  :: atomic { (row > 0 && row < mine) || (row == 0 && f < mine) }
  fi;
  assert(mine < TOKENS);
  atomic {   /* the COMMIT of the raise; its UPDATE compares once more, its INSERT fails on a row */
    if
    :: row >= mine -> give_turn(id); goto again
    :: else
    fi;
    assert(!issued[mine]);
    issued[mine] = true;
    if
    :: owner != NONE -> undrained = undrained | (1 << owner)
    :: else
    fi;
    row = mine; owner = id; ended = false;
    token[id] = mine;
    drains = undrained;
    give_turn(id);
    run Writer(id)
  };
  if
  :: goto over       /* it dies, or gives up */
  :: k = 0;
     do
     :: k < HOLDERS && (drains & (1 << k)) -> atomic { writing[k] == 0 && !keyed[k] -> k++ }
     :: k < HOLDERS && !(drains & (1 << k)) -> k++
     :: k == HOLDERS -> break
     od
  fi;
  atomic {
    assert(mine > before);
    if
    :: mine > armed -> armed = mine
    :: else
    fi
#ifdef REACHED
    ;
    assert(!(retired > 0 && id == HOLDERS - 1 && mine == HOLDERS))
#endif
  };
over:
  if
  :: atomic { arms && turn == NONE && row == mine && owner == id -> ended = true }
  :: skip
  fi
}

proctype Retirer() {
  byte n, k, locked, last;
  do
  :: n == RETIRES -> break
  :: n < RETIRES ->
     n++;
     locked = 0;
#ifdef NOTURN
     atomic { row > 0 && ended -> last = row };
#else
     atomic { arms && turn == NONE && row > 0 && ended -> turn = HOLDERS };
     last = row;
     if
     :: !ended -> goto give
     :: else
     fi;
#endif
#ifndef NOKEYS
     k = 0;
     do
     :: k == HOLDERS -> break
     :: k < HOLDERS ->
        atomic {
          if
#ifdef CURRENT
          :: owner == k ->
#else
          :: owner == k || (undrained & (1 << k)) ->
#endif
             if
             :: writing[k] > 0 -> goto give
             :: else -> keyed[k] = true; locked = locked | (1 << k)
             fi
          :: else
          fi;
          k++
        }
     od;
#endif
     atomic {
#ifndef NOFLOOR
       if
       :: last > flr -> flr = last
       :: else
       fi;
#endif
       row = 0; owner = NONE; ended = false; undrained = 0;
       arms = false; life++;
       retired++
     };
give:
     atomic {
       give_turn(HOLDERS);
       k = 0;
       do
       :: k == HOLDERS -> break
       :: k < HOLDERS ->
          if
          :: locked & (1 << k) -> keyed[k] = false
          :: else
          fi;
          k++
       od
     }
  od
}

init {
  byte i;
  atomic {
    do
    :: i == HOLDERS -> break
    :: i < HOLDERS -> run Holder(i); i++
    od;
    run Retirer()
  }
}
