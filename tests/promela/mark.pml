/* mark.pml - a cancel against a resume: a cancelled request does not run on with the next daemon, and nobody
 * stores into a lane that is unmapped, or into the wrong one.
 *
 * cb_cancel takes no lock: it marks the request, counts itself in, loads the request's place (lane, slot and
 * generation in one word) and then the lane's pointer, acts there if both mean one lane, and counts itself
 * out, as the sender of a bell does. Meanwhile the lane is lost (the place is taken away), the next one is installed, the request is sent
 * again (the place is set, then the mark is looked at), and the old lane is unmapped when the count is 0.
 *
 * Mirrors cb_cancel in client/cancel.c; cb_link_enter, _leave and _reap in client/link.c; cb_lose_locked and
 * resend_locked in client/lost.c; cb_send_locked and cb_ring in
 * client/send.c; install_locked in client/reconnect.c.
 *
 * run:
 * mutant: -DNO_FENCE_MARK        cancel loads the place without a fence
 * mutant: -DNO_FENCE_PLACE       the mark is looked at without a fence
 * mutant: -DNO_LOOK_MARK         it is not looked at behind the place
 * mutant: -DNO_COUNT             cancel does not count itself in
 * mutant: -DNO_FENCE_LINK        the count is looked at without a fence behind the new pointer
 * mutant: -DCOUNT_LAST           cancel counts itself in when it has loaded the pointer
 * mutant: -DNO_SERIAL            it does not compare the place's lane with the pointer's
 */
#define MARK   0
#define PLACE  1 /* 0: nowhere; else the lane's serial number */
#define LINK   2 /* the serial number of the lane that is mapped */
#define INSIDE 3
#define RINGS  4 /* INSIDE counts two threads: a word for each, for every word has one writer */
#define WORDS  5
#include "tso.promela"

chan canceller = BUFFER;
chan ringer = BUFFER;
chan library = BUFFER;

bool is_unmapped[3];  /* each lane, from 1 */
bool is_cancelled[3]; /* its cancel word */
byte n_ended;

inline act(lane, place)
{
    assert(!is_unmapped[lane]);
    assert(lane == place); /* a slot's generation means nothing in another lane */
    is_cancelled[lane] = true
}

proctype cancel()
{
    byte place, link;

    run drain(canceller);
    store(canceller, MARK, 1);
#ifndef NO_FENCE_MARK
    fence(canceller);
#endif
#if !defined(NO_COUNT) && !defined(COUNT_LAST)
    store(canceller, INSIDE, 1);
#ifndef NO_FENCE_MARK
    fence(canceller); /* a read-modify-write */
#endif
#endif
    place = load(PLACE);
    link = load(LINK);
#ifdef COUNT_LAST
    store(canceller, INSIDE, 1);
    fence(canceller);
#endif
    if
#ifdef NO_SERIAL
    :: place != 0 -> act(link, place)
#else
    :: place != 0 && place == link -> act(link, place)
#endif
    :: else
    fi;
    fence(canceller);
    store(canceller, INSIDE, 0);
    n_ended++
}

/* cb_ring: whatever lane there is. */
proctype ring()
{
    byte link;

    run drain(ringer);
#if !defined(NO_COUNT) && !defined(COUNT_LAST)
    store(ringer, RINGS, 1);
    fence(ringer);
#endif
    link = load(LINK);
#ifdef COUNT_LAST
    store(ringer, RINGS, 1);
    fence(ringer);
#endif
    assert(!is_unmapped[link]);
    store(ringer, RINGS, 0);
    n_ended++
}

bool is_resumed;

proctype lose_and_resume()
{
    run drain(library);
    /* What was sent to the first lane runs there, and is lost. */
    store(library, PLACE, 0);
    fence(library);
    if
    :: load(MARK) /* it ends as cancelled */
    :: !load(MARK) -> is_resumed = true
    fi;
    store(library, LINK, 2);
#ifndef NO_FENCE_LINK
    fence(library);
#endif
    if
    :: is_resumed ->
        store(library, PLACE, 2);
#ifndef NO_FENCE_PLACE
        fence(library);
#endif
#ifndef NO_LOOK_MARK
        if
        :: load(MARK) -> is_cancelled[2] = true
        :: else
        fi
#endif
    :: else
    fi;
    if
    :: load(INSIDE) == 0 && load(RINGS) == 0 -> is_unmapped[1] = true
    :: else /* a later look will find nobody */
    fi;
    n_ended++
}

init
{
    atomic {
        mem[PLACE] = 1;
        mem[LINK] = 1;
        run cancel();
        run ring();
        run lose_and_resume()
    };
    n_ended == 3;
    assert(!is_resumed || is_cancelled[2])
}
