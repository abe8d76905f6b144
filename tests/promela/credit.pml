/* credit.pml - slots and a uid's credit: charged before use, given back on every path, and no lane waits for
 * credit that is free.
 *
 * Two lanes of one uid share credit for CREDIT requests, and each has a slot. The loop takes entries in,
 * ends requests, lets go of clients who are gone, and sleeps only when a look at everything finds nothing.
 * Credit comes back by the daemon's own doing, never by a client's store; so the loop looks again at that
 * uid's waiting lanes before it sleeps. Each client submits REQUESTS requests, of which any may be malformed
 * (found when it is charged already) or be cancelled while it waits, and may die at any time.
 *
 * Mirrors serve_uid, retry_waiting and charging in daemon/intake.c; clients_close in daemon/clients.c;
 * cb_lane_wait, _retry, _reject and _cancel in shm/lane.c; daemon_turn in daemon/daemon.c. Waking
 * is doze.pml's: here the sleeper sees every store.
 *
 * run: -DREQUESTS=3 -DCREDIT=1
 * run: -DREQUESTS=2 -DCREDIT=2
 * mutant: -DREQUESTS=2 -DCREDIT=1 -DNO_RETRY            lanes that wait are not looked at when credit returns
 * mutant: -DREQUESTS=2 -DCREDIT=1 -DSLEEP_ON_CREDIT     the loop sleeps though credit came back in this turn
 * mutant: -DREQUESTS=2 -DCREDIT=1 -DNO_RETRY_ON_DEATH   likewise, when it returns by a death
 * mutant: -DREQUESTS=2 -DCREDIT=1 -DLEAK_ON_BAD         who is refused after the charge stays charged
 * mutant: -DREQUESTS=2 -DCREDIT=1 -DLEAK_ON_DEATH       who dies stays charged
 * mutant: -DREQUESTS=2 -DCREDIT=1 -DLEAK_ON_CANCEL      who is cancelled stays charged
 * mutant: -DREQUESTS=2 -DCREDIT=1 -DRETURN_TWICE        who dies behind its end is given back again
 * mutant: -DREQUESTS=2 -DCREDIT=1 -DNO_CHECK            credit is charged that is not there
 * mutant: -DREQUESTS=2 -DCREDIT=1 -DHEAR_NO_CANCEL      a cancel of what waits is not looked at
 */
#define LANES 2

byte credit = CREDIT;
byte sent[LANES], answered[LANES], ended[LANES];
bool is_bad[LANES];       /* the entry in the ring */
bool is_cancelled[LANES]; /* its cancel word */
bool holds[LANES];        /* a request that runs: a slot, and credit */
bool waits[LANES];        /* its entry was left in the ring for want of credit */
bool is_gone[LANES];      /* the client: dead, or closed */
bool is_closed[LANES];    /* the daemon knows */
bool may_retry;           /* credit came back since waiting lanes were last looked at */

inline give_back(k)
{
    holds[k] = false;
    credit++;
    assert(credit <= CREDIT);
    may_retry = true
}

inline intake(k)
{
    if
    :: !is_closed[k] && !is_gone[k] && answered[k] < sent[k] && (!waits[k] || is_cancelled[k]) ->
        if
        :: is_cancelled[k] ->
            answered[k]++;
            ended[k]++;
            waits[k] = false
#ifndef NO_CHECK
        :: !is_cancelled[k] && credit == 0 -> waits[k] = true
        :: !is_cancelled[k] && credit > 0 ->
#else
        :: !is_cancelled[k] ->
            assert(credit > 0);
#endif
            credit--;
            answered[k]++;
            if
            :: is_bad[k] ->
                ended[k]++;
#ifndef LEAK_ON_BAD
                credit++;
                may_retry = true
#endif
            :: else ->
                assert(!holds[k]);
                holds[k] = true
            fi
        fi
    :: else
    fi
}

#ifdef LEAK_ON_CANCEL
#define is_kept(k) is_cancelled[k]
#else
#define is_kept(k) false
#endif

inline step(k)
{
    if
    :: holds[k] && !is_closed[k] ->
        if
        :: is_kept(k) -> holds[k] = false
        :: else -> give_back(k)
        fi;
        ended[k]++
    :: true
    fi
}

inline look_at_socket(k)
{
    if
    :: is_gone[k] && !is_closed[k] ->
        is_closed[k] = true;
        waits[k] = false;
        if
        :: holds[k] ->
#ifdef LEAK_ON_DEATH
            holds[k] = false
#else
            give_back(k)
#ifdef NO_RETRY_ON_DEATH
            ; may_retry = false
#endif
#endif
#ifdef RETURN_TWICE
        :: !holds[k] && ended[k] > 0 -> give_back(k)
#endif
        :: else
        fi
    :: else
    fi
}

inline retry(k)
{
    if
    :: may_retry -> waits[k] = false
    :: else
    fi
}

#ifdef HEAR_NO_CANCEL
#define is_heard(k) false
#else
#define is_heard(k) is_cancelled[k]
#endif
#define is_news(k) \
    (!is_closed[k] && (is_gone[k] || (answered[k] < sent[k] && (!waits[k] || is_heard(k)))))
#ifdef SLEEP_ON_CREDIT
#define may_sleep true
#else
#define may_sleep !may_retry
#endif
#define is_all_over (is_closed[0] && is_closed[1])
#define is_stuck(k) (waits[k] && !is_gone[k] && (credit > 0 || is_cancelled[k]))

active proctype daemon()
{
    do
    :: is_all_over -> break
    :: else ->
        d_step { look_at_socket(0) };
        d_step { look_at_socket(1) };
        d_step {
#ifndef NO_RETRY
            retry(0);
            retry(1);
#endif
            may_retry = false
        };
        if
        :: atomic { true -> intake(0) };
            atomic { intake(1) }
        :: atomic { true -> intake(1) };
            atomic { intake(0) }
        fi;
        atomic { step(0) };
        atomic { step(1) };
        /* On to the next step; or to sleep, as when it is paused, until there is news or it steps again. */
        if
        :: true
        :: atomic { may_sleep && !is_news(0) && !is_news(1) -> assert(!is_stuck(0) && !is_stuck(1)) };
            (is_news(0) || is_news(1) || holds[0] || holds[1] || is_all_over)
        fi
    od;
    assert(credit == CREDIT && !holds[0] && !holds[1])
}

proctype client(byte k)
{
    do
    :: sent[k] < REQUESTS ->
        if
        :: atomic { true ->
            is_cancelled[k] = false;
            if
            :: is_bad[k] = false
            :: is_bad[k] = true
            fi;
            sent[k]++ }
        :: break /* dies before */
        fi;
        if
        :: ended[k] == sent[k]
        :: is_cancelled[k] = true;
            ended[k] == sent[k]
        :: break /* dies with it */
        fi
    :: else -> break
    od;
    is_gone[k] = true
}

init
{
    atomic {
        run client(0);
        run client(1)
    }
}
