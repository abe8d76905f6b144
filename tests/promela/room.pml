/* room.pml - the result ring never overflows, and whoever reads gets everything.
 *
 * Capacity is reserved when a request is let in: an active slot may still cost two entries, TOKENS and its
 * end, or one while a TOKENS entry of it is unread; their sum is the lane's debt. Nothing is taken in unless
 * free - 2 x active >= 3 x children + 1, a LANE entry is written only while free > debt, and so free >= debt
 * always holds. `free` counts from the client's cursor as last looked at.
 *
 * Mirrors debt, is_tokens_unread, announce and hint in shm/lane_deliver.c; has_room, wait_is_over,
 * cb_lane_peek and admit in shm/lane.c. Cursors are told by their differences, so that states repeat. Memory
 * is sequentially consistent here: an old cursor is one that was not looked at again.
 *
 * run: -DCAPACITY=8 -DREQUESTS=4
 * run: -DCAPACITY=16 -DREQUESTS=2 -DREADS_NOTHING
 * mutant: -DCAPACITY=8 -DREQUESTS=3 -DROOM=1          a child is let in with two places free
 * mutant: -DCAPACITY=8 -DREQUESTS=3 -DACTIVE=0        active slots count for no place
 * mutant: -DCAPACITY=8 -DREQUESTS=3 -DFAMILY_AS_ONE   a family needs no more places than one
 * mutant: -DCAPACITY=8 -DREQUESTS=3 -DNO_MERGE        a slot whose TOKENS entry is unread gets another
 * mutant: -DCAPACITY=8 -DREQUESTS=3 -DLANE_ALWAYS     a LANE entry is written wherever there is a place
 * mutant: -DCAPACITY=8 -DREQUESTS=3 -DCURSOR_AHEAD    a cursor ahead of what was read is believed
 * mutant: -DCAPACITY=8 -DREQUESTS=4 -DNO_REFRESH      who waits for room does not look at the cursor again
 * mutant: -DCAPACITY=8 -DREQUESTS=3 -DROOM=4          more is asked for than a ring that was read has
 */
#ifndef ROOM
#define ROOM 3
#endif
#ifndef ACTIVE
#define ACTIVE 2
#endif
#define SLOTS 2

chan ring = [CAPACITY] of { bit }; /* what the client has not read; 1: a terminal entry */
byte n_read;                       /* what it has, since the daemon last looked at its cursor */
byte n_answered, n_active, n_due;  /* n_due: terminal entries not yet read */
byte n_notices;
bool is_done;

bool owes[SLOTS];     /* a terminal entry */
byte unread[SLOTS];   /* the place of its TOKENS entry from the cursor last looked at, from 1; 0: it was read */
byte n_tokens[SLOTS];

byte ahead; /* of the truth, where a cursor is believed that is */
#define n_used (len(ring) + n_read - ahead)
#define debt   ((owes[0] -> 2 - (unread[0] > 0) : 0) + (owes[1] -> 2 - (unread[1] > 0) : 0))

inline put(is_end)
{
    assert(nfull(ring)); /* else it overwrites an entry that nobody has read */
    ring!is_end;
    n_due = n_due + is_end
}

inline check()
{
    assert(CAPACITY >= n_used && CAPACITY - n_used >= debt)
}

inline pass(k, n)
{
    unread[k] = (unread[k] > n -> unread[k] - n : 0)
}

inline refresh()
{
#ifdef CURSOR_AHEAD
    ahead = (len(ring) > 1 -> 2 : 0);
#endif
    n = n_read;
    pass(0, n);
    pass(1, n);
    n = 0;
    n_read = 0;
    check()
}

inline token(k)
{
    n_tokens[k]++;
    if
#ifndef NO_MERGE
    :: unread[k] > 0
#endif
    :: else ->
        put(0);
        unread[k] = n_used
    fi;
    check()
}

inline end(k)
{
    owes[k] = false;
    n_tokens[k] = 0;
    unread[k] = 0;
    n_active--;
    put(1);
    check()
}

inline admit(k)
{
    owes[k] = true;
    n_active++;
    put(0)
}

#ifdef FAMILY_AS_ONE
#define has_room(children) (CAPACITY - n_used >= ACTIVE * n_active + ROOM + 1)
#else
#define has_room(children) (CAPACITY - n_used >= ACTIVE * n_active + ROOM * (children) + 1)
#endif
/* NO_REFRESH: it sees what it saw when it began to wait. */
bool waits, waits_for_two;

active proctype daemon()
{
    byte n;

    do
    /* An entry of one child, or of two. It is refused, or cancelled early; or it is let in. */
    :: d_step { n_answered < REQUESTS && n_active < SLOTS && !waits && has_room(1) ->
        n_answered++;
        put(1);
        check() }
    :: d_step { n_answered < REQUESTS && !owes[0] && !waits && has_room(1) ->
        n_answered++;
        admit(0);
        check() }
    :: d_step { n_answered < REQUESTS && owes[0] && !owes[1] && !waits && has_room(1) ->
        n_answered++;
        admit(1);
        check() }
    :: d_step { n_answered < REQUESTS && n_active == 0 && (!waits || waits_for_two) && has_room(2) ->
        n_answered++;
        waits = false;
        waits_for_two = false;
        admit(0);
        admit(1);
        check() }
    :: d_step { n_answered < REQUESTS && waits && !waits_for_two && n_active < SLOTS && has_room(1) ->
        n_answered++;
        waits = false;
        if
        :: !owes[0] -> admit(0)
        :: else -> admit(1)
        fi;
        check() }
    /* No room: it waits, the lane's next ones behind it. */
    :: d_step { n_answered < REQUESTS && n_active < SLOTS && !waits && !has_room(1) -> waits = true }
    :: d_step { n_answered < REQUESTS && n_active == 0 && !waits && !has_room(2) ->
        waits = true;
        waits_for_two = true }
    /* Steps give tokens, and ends. */
    :: d_step { owes[0] && n_tokens[0] < 2 -> token(0) }
    :: d_step { owes[1] && n_tokens[1] < 2 -> token(1) }
    :: d_step { owes[0] -> end(0) }
    :: d_step { owes[1] -> end(1) }
    :: d_step { n_notices < 2 && n_used > 2 ->
        n_notices++;
        if
#ifdef LANE_ALWAYS
        :: nfull(ring) && n_used < CAPACITY -> put(0)
#else
        :: CAPACITY - n_used > debt -> put(0)
#endif
        :: else
        fi;
        check() }
#ifdef NO_REFRESH
    :: d_step { n_read > 0 && !waits -> refresh() }
#else
    :: d_step { n_read > 0 -> refresh() }
#endif
    :: n_answered == REQUESTS && n_active == 0 -> break
    od;
    is_done = true
}

active proctype client()
{
    bit is_end;

#ifdef READS_NOTHING
    is_done;
#endif
    do
    :: d_step { nempty(ring) -> ring?is_end; n_due = n_due - is_end; n_read++; is_end = 0 }
    :: is_done && empty(ring) -> break
    od;
    assert(n_due == 0)
}
