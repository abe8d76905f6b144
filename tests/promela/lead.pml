/* lead.pml - many threads wait on one lane: one leads, the others follow; nobody sleeps beside his result.
 *
 * The leader alone sleeps on the lane, and while it is parked it alone takes entries. It parks under the
 * lock, behind a last look at its own result. The others sleep on words of their own, which whoever takes
 * their entry sets under the lock. Who returns from a wait while nobody leads wakes one who still waits. A
 * third thread polls between; a wait may also time out, and passes the lead on by the same rule.
 *
 * Mirrors cb_await_locked, lead_locked, follow_locked and wait_for in client/wait.c; cb_pass_lead_locked in
 * client/wake.c; cb_drain_locked and cb_led_by_other_locked in client/results.c. All under one lock, which orders memory;
 * the daemon's side is park.pml's. Without slices and safety net, which would hide what is lost.
 *
 * run:
 * run: -DTIMEOUTS
 * mutant: -DNO_PASS               the lead is not passed on
 * mutant: -DNO_WAKE               whoever takes an entry does not tell its waiter
 * mutant: -DLOOK_UNLOCKED         the leader parks under another hold of the lock than it looked under
 * mutant: -DWORD_LAST             a follower's word is cleared when it has let go of the lock
 * mutant: -DTIMEOUTS -DPASS_NOT_ON_TIMEOUT   whoever times out does not pass the lead on
 */
#define THREADS 2 /* that wait, each for its own request */

bool lock;
byte ring;                 /* of entries: bit k: thread k's request has one */
bool parked;               /* a sleep was announced in the lane, and not yet answered */
bool bell;                 /* the leader's sleep is over */
bool ready[THREADS];       /* in private memory */
bool waiting[THREADS];     /* in h->waiters */
bool word[THREADS];        /* its word */
bool is_told[THREADS];    /* its wait is over */
bool led;
byte leader;

#define acquire() atomic { !lock -> lock = true }
#define release() lock = false

/* Publish, fence, look at parked, ring. */
inline deliver(k)
{
    atomic {
        ring = ring | (1 << k);
        if
        :: parked -> parked = false; bell = true
        :: else
        fi
    }
}

active proctype daemon()
{
    byte first;

    /* Their results, in any order; the second may need that the first was told. */
    if
    :: first = 0
    :: first = 1
    fi;
    deliver(first);
    if
    :: true
    :: true -> is_told[first]
    fi;
    deliver(1 - first)
}

#define may_take(me) (!led || leader == me)

inline make_ready(k)
{
    ready[k] = true;
    if
#ifndef NO_WAKE
    :: waiting[k] -> word[k] = true
#endif
    :: else
    fi
}

/* Under the lock. */
inline drain(me)
{
    d_step {
        if
        :: may_take(me) && ring & 1 -> make_ready(0)
        :: else
        fi;
        if
        :: may_take(me) && ring & 2 -> make_ready(1)
        :: else
        fi;
        if
        :: may_take(me) -> ring = 0
        :: else
        fi
    }
}

inline pass_lead()
{
    d_step {
        if
        :: !led && waiting[0] -> word[0] = true
        :: !led && !waiting[0] && waiting[1] -> word[1] = true
        :: else
        fi
    }
}

proctype waits(byte me)
{
    bool is_late;

    acquire();
    do
    :: ready[me] -> break
    :: !ready[me] ->
        drain(me);
        if
        :: ready[me] -> break
#ifdef TIMEOUTS
        :: !ready[me] && me == 0 -> is_late = true; break
#endif
        :: !ready[me] && led && leader != me ->
#ifndef WORD_LAST
            word[me] = false;
#endif
            waiting[me] = true;
            release();
#ifdef WORD_LAST
            word[me] = false;
#endif
#ifdef TIMEOUTS
            if
            :: word[me]
            :: me == 0
            fi;
#else
            word[me];
#endif
            acquire();
            waiting[me] = false
        :: !ready[me] && !(led && leader != me) ->
#ifdef LOOK_UNLOCKED
            release();
            acquire();
#endif
            d_step {
                led = true;
                leader = me;
                bell = false;
                parked = true
            };
            if
            :: ring != 0 /* the second look */
            :: ring == 0 ->
                release();
#ifdef TIMEOUTS
                if
                :: bell
                :: me == 0
                fi;
#else
                bell;
#endif
                acquire()
            fi;
            d_step {
                parked = false;
                led = false
            }
        fi
    od;
#ifdef PASS_NOT_ON_TIMEOUT
    if
    :: is_late
    :: else -> pass_lead()
    fi;
#else
#ifndef NO_PASS
    pass_lead();
#endif
#endif
    is_told[me] = true;
    release()
}

/* cb_poll by a thread that waits for nothing. */
active proctype polls()
{
    byte i;

    for (i : 0 .. 1) {
        acquire();
        drain(THREADS);
        release()
    }
}

init
{
    atomic {
        run waits(0);
        run waits(1)
    }
}
