/* park.pml - the client sleeps, the daemon wakes it: no result is left that nobody was woken for.
 *
 * The client announces its sleep (parked), fences, looks at res.sent once more and sleeps on the bell word
 * or, in an event loop, on the socket. The daemon publishes (emitted, res.sent), fences, looks at parked
 * and rings each sleep once. Tokens merge: one whose TOKENS entry is unread gets none, for the reader gives
 * the entry back, fences, and then looks at emitted. No end follows the last token: nothing makes up for a
 * wake that is lost, so that shows as a process that waits for ever.
 *
 * Mirrors cb_lane_flush, announce and cb_lane_bell in shm/lane_deliver.c; cb_lane_client_poll, _park and
 * _unpark in shm/lane_client.c; lead_locked, empty_socket and cb_arm in client/wait.c. Without their time
 * limits, which would hide what is lost.
 *
 * run: -DTOKENS=3
 * run: -DTOKENS=3 -DSOCKET
 * mutant: -DTOKENS=2 -DNO_FENCE_PARK              the client looks again without a fence
 * mutant: -DTOKENS=2 -DNO_LOOK_PARK               it does not look again
 * mutant: -DTOKENS=2 -DNO_FENCE_FLUSH             the daemon looks at parked without a fence
 * mutant: -DTOKENS=3 -DNO_FENCE_AGAIN             likewise, after a second entry
 * mutant: -DTOKENS=3 -DNO_SECOND_ENTRY            an entry that was read meanwhile is not followed by one
 * mutant: -DTOKENS=3 -DNO_FENCE_TAKE              the reader looks at emitted without a fence
 * mutant: -DTOKENS=3 -DRING_FIRST                 the bell rings before what it is for is published
 * mutant: -DTOKENS=3 -DONE_EPOCH                  all sleeps look the same
 * mutant: -DTOKENS=2 -DBELL_LAST                  the bell word is read after the second look
 * mutant: -DTOKENS=2 -DSOCKET -DNO_FENCE_PARK     as above, in a loop
 * mutant: -DTOKENS=2 -DSOCKET -DNO_FENCE_FLUSH    likewise
 * mutant: -DTOKENS=2 -DSOCKET -DNO_LOOK_PARK      the recipe's last poll is left out
 * mutant: -DTOKENS=2 -DSOCKET -DEMPTY_LAST        the socket is emptied after the sleep was announced
 */
#define EMITTED 0
#define SENT    1
#define BELL    2
#define TAKEN   3
#define PARKED  4
#define WORDS   5
#include "tso.promela"

chan down = BUFFER; /* the daemon's stores */
chan up = BUFFER;   /* the client's */

bool asleep; /* in the kernel, on the bell word */
chan socket = [1] of { bit };

/* ---- the daemon ---- */

byte emitted, announced, sent, tokens_at, taken_seen;
byte parked_seen, answered, bell;
bool has_entry, touched, any;

inline announce()
{
    any = false;
    if
    :: touched && emitted > announced ->
        if
        :: has_entry && taken_seen <= tokens_at
        :: else ->
            has_entry = true;
            tokens_at = sent;
            sent++;
            announced = emitted;
            any = true;
            touched = false
        fi
    :: else
    fi
}

inline ring()
{
    parked_seen = load(PARKED);
    if
    :: parked_seen % 2 == 1 && parked_seen != answered ->
#ifdef SOCKET
        if
        :: socket!1
        :: full(socket) /* what is queued keeps it readable */
        fi;
#else
        bell++;
        store(down, BELL, bell);
        fence(down); /* FUTEX_WAKE's own */
        asleep = false;
#endif
        answered = parked_seen
    :: else
    fi
}

active proctype daemon()
{
    byte i;

    run drain(down);
    for (i : 1 .. TOKENS) {
        emitted++;
        store(down, EMITTED, emitted);
        touched = true;
        taken_seen = load(TAKEN);
        d_step { announce() }
#ifdef RING_FIRST
        ring();
#endif
        store(down, SENT, sent);
#ifndef NO_FENCE_FLUSH
        fence(down);
#endif
#ifndef NO_SECOND_ENTRY
        if
        :: touched ->
            taken_seen = load(TAKEN);
            d_step { announce() }
            if
            :: any ->
                store(down, SENT, sent);
#ifndef NO_FENCE_AGAIN
                fence(down)
#endif
            :: else
            fi
        :: else
        fi;
#endif
        touched = false;
#ifndef RING_FIRST
        ring()
#endif
    }
}

/* ---- the client ---- */

byte seen, taken, parked;

inline consume(found)
{
    found = false;
    do
    :: load(SENT) != taken ->
        taken++;
        store(up, TAKEN, taken);
#ifndef NO_FENCE_TAKE
        fence(up);
#endif
        assert(load(EMITTED) >= seen);
        seen = load(EMITTED);
        found = true
    :: else -> break
    od
}

inline announce_sleep()
{
#ifdef ONE_EPOCH
    parked = 1;
#else
    parked = (parked / 2) * 2 + 1 + (parked % 2) * 2;
#endif
    store(up, PARKED, parked);
#ifndef NO_FENCE_PARK
    fence(up)
#endif
}

inline leave_sleep()
{
#ifdef ONE_EPOCH
    parked = 0;
#else
    parked = parked + parked % 2;
#endif
    store(up, PARKED, parked)
}

active proctype client()
{
    byte bell_seen;
    bool found;

    run drain(up);
#ifdef SOCKET
    if
    :: socket!1 /* an earlier record may lie there */
    :: true
    fi;
    do
    :: seen < TOKENS ->
        consume(found);
#ifndef EMPTY_LAST
        do
        :: socket?_
        :: empty(socket) -> break
        od;
#endif
        announce_sleep();
#ifndef NO_LOOK_PARK
        consume(found);
#endif
#ifdef EMPTY_LAST
        do
        :: socket?_
        :: empty(socket) -> break
        od;
#endif
        if
        :: seen < TOKENS -> nempty(socket)
        :: else
        fi;
        leave_sleep()
    :: else -> break
    od
#else
    do
    :: seen < TOKENS ->
        consume(found);
        if
        :: !found && seen < TOKENS ->
            bell_seen = load(BELL);
            announce_sleep();
            if
#ifndef NO_LOOK_PARK
            :: load(SENT) != taken
            :: load(SENT) == taken ->
#else
            :: true ->
#endif
#ifdef BELL_LAST
                bell_seen = load(BELL);
#endif
                if
                :: atomic { load(BELL) == bell_seen -> asleep = true }
                    !asleep
                :: load(BELL) != bell_seen
                fi
            fi;
            leave_sleep()
        :: else
        fi
    :: else -> break
    od
#endif
}
