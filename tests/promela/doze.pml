/* doze.pml - the daemon sleeps, clients wake it: whatever its waiting entries need is heard of.
 *
 * The daemon announces its sleep in every lane (doze), fences once, looks at every lane once more and
 * blocks on its sockets. A client publishes (req.sent, cancel_gen, and while its request ring is not empty
 * also free_gen and res.taken), fences, looks at doze and rings each sleep once. In one lane a request
 * B stands behind A: it waits for places in the result ring, which the client gives back by reading, and for
 * the run that A holds unless it was refused; or it is cancelled. With two lanes
 * there is one request in each.
 *
 * Mirrors cb_lane_peek, wait_is_over, cb_lane_look_again and cb_lane_doze in shm/lane.c;
 * sleep_until_something in daemon/sleep.c; cb_lane_client_submit, _poll, _free, _cancel, ring_if_dozing and
 * ring_if_waiting in shm/lane_client.c; cb_send_bell in client/send.c. Without the daemon's safety net.
 *
 * run: -DONE_LANE
 * run: -DTWO_LANES
 * mutant: -DONE_LANE -DNO_FENCE_DOZE      the daemon looks again without a fence
 * mutant: -DTWO_LANES -DNO_FENCE_PUBLISH   a client looks at doze without a fence, after a submit
 * mutant: -DONE_LANE -DNO_FENCE_FREE      likewise, after a free
 * mutant: -DONE_LANE -DNO_FENCE_TAKE      likewise, after a give-back
 * mutant: -DONE_LANE -DNO_FENCE_CANCEL    likewise, after a cancel
 * mutant: -DONE_LANE -DNO_LOOK_SENT       the daemon does not look again at requests
 * mutant: -DONE_LANE -DNO_LOOK_ROOM       nor at places
 * mutant: -DONE_LANE -DNO_LOOK_RUN        nor at runs
 * mutant: -DONE_LANE -DNO_LOOK_CANCEL     nor at cancels of what waits
 * mutant: -DONE_LANE -DNO_RING_FREE       a free rings nobody
 * mutant: -DONE_LANE -DNO_RING_TAKE       nor does a give-back
 * mutant: -DONE_LANE -DONE_NUMBER         all sleeps of the daemon look the same
 * mutant: -DTWO_LANES -DDOZE_ONE_LANE      one lane is not told of the sleep
 * mutant: -DONE_LANE -DRANG_AFTER         what is rung counts for the sleep that is there after the bell
 */
#define SENT      0
#define TAKEN     1
#define FREE      2
#define CANCEL    3
#define SENT_2    4
#define REQ_TAKEN 5
#define DOZE      6
#define DOZE_2    7
#define RESULTS   8 /* entries that A left in the result ring */
#define WORDS     9
#include "tso.promela"

#ifdef TWO_LANES
#define LAST   1 /* request of the first lane */
#define LAST_2 1 /* and of the second */
#else
#define LAST   2
#define LAST_2 0
#endif
#define PLACES 1 /* so many of them must be read before there is room for B */

chan down = BUFFER; /* the daemon's stores */
chan up = BUFFER;   /* the first client's */
chan up_2 = BUFFER; /* the second's */

bool bell; /* a record lies in one of the daemon's sockets */

/* ---- the daemon ---- */

byte taken, accepted_2; /* answered requests of each lane */
byte doze;
bool waits_room; /* else, if at all, for a run */
bool has_run;    /* A was accepted, not refused: it holds the run until it is freed */

inline look_again(something)
{
    something = false;
    if
#ifndef NO_LOOK_SENT
    :: taken == 0 && load(SENT) > 0 -> something = true
    :: taken == 1 && load(SENT) > 1 ->
#else
    :: taken == 1 && load(SENT) > 1 ->
#endif
        if
#ifndef NO_LOOK_CANCEL
        :: load(CANCEL) == 2 -> something = true
#endif
#ifndef NO_LOOK_ROOM
        :: waits_room && load(TAKEN) >= PLACES -> something = true
#endif
#ifndef NO_LOOK_RUN
        :: !waits_room && (!has_run || load(FREE) == 1) -> something = true
#endif
        :: else
        fi
    :: else
    fi;
    if
    :: accepted_2 == 0 && load(SENT_2) > 0 -> something = true
    :: else
    fi
}

inline say_doze()
{
    store(down, DOZE, doze);
#ifndef DOZE_ONE_LANE
    store(down, DOZE_2, doze)
#endif
}

active proctype daemon()
{
    bool something;

    run drain(down);
    do
    :: taken < LAST || accepted_2 < LAST_2 ->
        if
        :: accepted_2 == 0 && load(SENT_2) > 0 -> accepted_2 = 1
        :: else
        fi;
        if
        :: taken == 0 && load(SENT) > 0 ->
            taken = 1;
            if
            :: has_run = true
            :: has_run = false
            fi;
            store(down, REQ_TAKEN, 1);
            store(down, RESULTS, 1 + has_run) /* REJECTED; or ACCEPTED and its end */
        :: taken == 1 && load(SENT) > 1 ->
            if
            :: load(TAKEN) < PLACES -> waits_room = true
            :: else ->
                waits_room = false;
                if
                :: !has_run || load(FREE) == 1 || load(CANCEL) == 2 ->
                    taken = 2;
                    store(down, REQ_TAKEN, 2)
                :: else
                fi
            fi
        :: else
        fi;
        if
        :: taken == LAST && accepted_2 == LAST_2 -> break
        :: else
        fi;
#ifdef ONE_NUMBER
        doze = 1;
#else
        doze++;
#endif
        say_doze();
#ifndef NO_FENCE_DOZE
        fence(down);
#endif
        look_again(something);
        if
        :: something
        :: !something -> atomic { bell -> bell = false }
        fi;
#ifdef ONE_NUMBER
        doze = 0;
#else
        doze++;
#endif
        say_doze()
    :: else -> break
    od
}

/* ---- the clients ---- */

inline ring(word, rung)
{
    seen = load(word);
    if
    :: seen % 2 == 1 && seen != rung ->
        bell = true;
#ifdef RANG_AFTER
        rung = load(word)
#else
        rung = seen
#endif
    :: else
    fi
}

inline ring_if_waiting()
{
    if
    :: load(REQ_TAKEN) != sent -> ring(DOZE, rung)
    :: else
    fi
}

active proctype client()
{
    byte sent, read, n, seen, rung;

    run drain(up);
    sent = 1;
    store(up, SENT, 1);
    fence(up);
    ring(DOZE, rung);
#ifdef ONE_LANE
    sent = 2;
    store(up, SENT, 2);
#ifndef NO_FENCE_PUBLISH
    fence(up);
#endif
    ring(DOZE, rung);
    /* It may cancel B while that waits; else it reads, and gives back A's run when it has seen its end. */
    if
    :: true ->
        load(RESULTS) > 0;
        n = load(RESULTS);
        do
        :: read < n ->
            read++;
            store(up, TAKEN, read);
#ifndef NO_FENCE_TAKE
            fence(up);
#endif
#ifndef NO_RING_TAKE
            ring_if_waiting()
#endif
        :: else -> break
        od;
        if
        :: n == 2 ->
            store(up, FREE, 1);
#ifndef NO_FENCE_FREE
            fence(up);
#endif
#ifndef NO_RING_FREE
            ring_if_waiting()
#endif
        :: else
        fi
    :: true ->
        load(RESULTS) > 0;
        store(up, TAKEN, PLACES);
        fence(up);
        ring_if_waiting();
        store(up, CANCEL, 2);
#ifndef NO_FENCE_CANCEL
        fence(up);
#endif
        ring(DOZE, rung)
    fi
#endif
}

#ifdef TWO_LANES
active proctype client_2()
{
    byte seen, rung;

    run drain(up_2);
    store(up_2, SENT_2, 1);
#ifndef NO_FENCE_PUBLISH
    fence(up_2);
#endif
    ring(DOZE_2, rung)
}
#endif
