/* mark.pml - a cancel against a resume: a cancelled request does not run on with the next daemon, and nobody
 * stores into a lane that is unmapped, or into the wrong one.
 *
 * cb_cancel takes no lock: it marks the request, counts itself in, loads the lane's pointer and then the request's
 * place (lane, slot and generation in one word), acts there if both mean one lane, and counts itself
 * out, as the sender of a bell does. Meanwhile the lane is lost (the place is taken away), the next one is
 * installed, the request is sent again (the place is set, then the mark is looked at), and the old lane is
 * unmapped when the count is 0.
 *
 * Mirrors cb_cancel in client/cancel.c; cb_link_enter, _leave and _reap in client/link.c; cb_lose_locked in
 * client/lost.c; resend_locked in client/resend.c; cb_send_locked in client/send.c;
 * cb_ring in client/lost.c; install_locked in client/resume.c.
 *
 * run:
 * run: -DLATE
 * mutant: -DNO_FENCE_ENTER       nobody fences behind his count
 * mutant: -DNO_FENCE_PLACE       the mark is looked at without a fence
 * mutant: -DNO_LOOK_MARK         it is not looked at behind the place
 * mutant: -DPLACE_LAST           the place is set behind the look at the mark
 * mutant: -DNO_COUNT             cancel does not count itself in
 * mutant: -DLEAVE_FIRST          it counts itself out before it acts
 * mutant: -DNO_FENCE_LINK        the count is looked at without a fence behind the new pointer
 * mutant: -DNO_LOOK_COUNT        the count is not looked at
 * mutant: -DCOUNT_LAST           cancel counts itself in when it has loaded the pointer
 * mutant: -DNO_SERIAL            it does not compare the place's lane with the pointer's
 * mutant: -DLATE -DPLAIN_MARK    a late cancel of the number's last request takes the mark away
 */
#define MARK   0 /* 2: this request; 1: the number's last one */
#define PLACE  1 /* 0: nowhere; else the lane's serial number */
#define LINK   2 /* the serial number of the lane that is mapped */
#define INSIDE 3
#define RINGS  4 /* INSIDE counts two threads: a word for each, for every word has one writer */
#define WORDS  5
#include "tso.promela"

#define is_marked (load(MARK) == 2)

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
#ifdef LATE
    /* A compare-and-swap. */
    atomic { mem[MARK] = (mem[MARK] < 2 -> 2 : mem[MARK]) };
#else
    store(canceller, MARK, 2);
#endif
#if !defined(NO_COUNT) && !defined(COUNT_LAST)
    store(canceller, INSIDE, 1);
#endif
#ifndef NO_FENCE_ENTER
    fence(canceller);
#endif
    link = load(LINK);
    place = load(PLACE);
#ifdef COUNT_LAST
    store(canceller, INSIDE, 1);
    fence(canceller);
#endif
#ifdef LEAVE_FIRST
    store(canceller, INSIDE, 0);
#endif
    if
#ifdef NO_SERIAL
    :: place != 0 -> act(link, place)
#else
    :: place != 0 && place == link -> act(link, place)
#endif
    :: else
    fi;
    store(canceller, INSIDE, 0);
    n_ended++
}

/* Was delayed behind its look at the id, which is the number's last request's. */
proctype late()
{
#ifdef LATE
#ifdef PLAIN_MARK
    mem[MARK] = 1;
#else
    atomic { mem[MARK] = (mem[MARK] < 1 -> 1 : mem[MARK]) };
#endif
#endif
    n_ended++
}

/* cb_ring: whatever lane there is. */
proctype ring()
{
    byte link;

    run drain(ringer);
#if !defined(NO_COUNT) && !defined(COUNT_LAST)
    store(ringer, RINGS, 1);
#ifndef NO_FENCE_ENTER
    fence(ringer);
#endif
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
    if
    :: is_marked /* it ends as cancelled */
    :: !is_marked -> is_resumed = true
    fi;
    store(library, LINK, 2);
    if
    :: is_resumed ->
#ifdef PLACE_LAST
        fence(library);
        if
        :: is_marked -> is_cancelled[2] = true
        :: else
        fi;
        store(library, PLACE, 2)
#else
        store(library, PLACE, 2);
#ifndef NO_FENCE_PLACE
        fence(library);
#endif
#ifndef NO_LOOK_MARK
        if
        :: is_marked -> is_cancelled[2] = true
        :: else
        fi
#endif
#endif
    :: else
    fi;
#ifndef NO_FENCE_LINK
    fence(library);
#endif
    if
#ifdef NO_LOOK_COUNT
    :: true -> is_unmapped[1] = true
#else
    :: load(INSIDE) == 0 && load(RINGS) == 0 -> is_unmapped[1] = true
    :: else /* a later look will find nobody */
#endif
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
        run late();
        run lose_and_resume()
    };
    n_ended == 4;
    assert(!is_resumed || is_cancelled[2])
}
