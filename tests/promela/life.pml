/* life.pml - one resumable request through the deaths of its daemons: connect, submit, cancel, finish, the
 * client dies, a daemon dies, the library resubmits, the next daemon dies too.
 *
 * A daemon may be killed between any two of its stores, all but the last of LIVES, and the client between any
 * two of its steps. The answer's token with the index i is i + 1, computed again or not; a stop rule ends it
 * behind the last. With -DCHANGES daemons have one of two kinds of weights, whose tokens differ: a resume
 * under another fingerprint is refused, and the request fails or, with -DRESTART, begins anew, which the
 * application is told.
 *
 * It must hold: one terminal, with every token before it; each index handed out once, in order, of one kind,
 * none behind the last; no work for what was cancelled under an earlier daemon; the request ends; and a
 * daemon holds nothing for who has gone.
 *
 * Mirrors cb_lose_locked, belongs and lose_one_locked in client/lost.c; cb_resend_locked in client/resend.c;
 * cb_admit_locked in client/ends.c; publish_record, cb_lane_give and admit in shm/lane.c; cb_lane_token and
 * cb_lane_end in shm/lane_deliver.c. One that is dead stores nothing any more and the words are published in
 * order, so memory is sequentially consistent here.
 *
 * run: -DLIVES=3
 * run: -DLIVES=3 -DCHANGES
 * run: -DLIVES=3 -DCHANGES -DRESTART
 * mutant: -DLIVES=2 -DEMITTED_FIRST        emitted is stored before the token
 * mutant: -DLIVES=2 -DEND_FIRST            the terminal state is stored before the last emitted
 * mutant: -DLIVES=2 -DSTATE_LAST           the library loads emitted before ctl
 * mutant: -DLIVES=2 -DRECORD_LAST          a record's ctl is stored before the rest of it
 * mutant: -DLIVES=2 -DRESUME_FROM_0        a resume counts its ids as prompt
 * mutant: -DLIVES=2 -DHAND_OUT_ALL         a lane's tokens are handed out from its first on
 * mutant: -DLIVES=2 -DNO_STOP_RULE         the stop rules do not run over what a resume gives
 * mutant: -DLIVES=2 -DNO_MARK              a cancel is forgotten with its lane
 * mutant: -DLIVES=2 -DNO_EOF               nobody looks at the socket of a daemon that says nothing
 * mutant: -DLIVES=2 -DKEEP_ON_EOF          what a dead client had is not given back
 * mutant: -DLIVES=2 -DNO_GENERATION        a record is believed whatever its generation
 * mutant: -DLIVES=2 -DTWO_ENDS             a cancel ends what has ended
 * mutant: -DLIVES=2 -DCHANGES -DNO_FINGERPRINT        tokens of other weights are added
 * mutant: -DLIVES=2 -DCHANGES -DRESTART -DNO_FORGET   who begins anew keeps the old tokens
 */
#define N 2 /* tokens of the answer */

mtype = { NOTHING, ADMITTED, FINISHED, CANCELLED };

/* The lane, of which each connection has a new one. */
mtype ctl;                                   /* ctl and ctl_gen are one word: stored and loaded at once */
byte ctl_gen, emitted, tokens[N + 1];
byte cancel_gen;
chan requests = [1] of { byte, byte, byte, byte }; /* generation, n_given, resume_from, kind */
chan refusals = [1] of { bit };
bool is_client_gone; /* closed, or dead */

byte life; /* of the daemon, from 1 */
bool is_alive, is_killed, is_client_killed;
byte kind; /* of its weights: 1 or 2 */
byte held; /* what it has charged: slot, run, credit */

/* ---- daemons ---- */

byte cancel_life; /* in whose life a cancel was asked for; 0: not */

inline store_ctl(gen, state)
{
    d_step {
        ctl_gen = gen;
        ctl = state
    }
}

inline serve()
{
    do
    :: d_step { requests?gen, n_given, n, wanted -> held = 1 } /* charged before it is used */
        if
#ifndef NO_FINGERPRINT
        :: wanted != kind ->
            held = 0;
            refusals!1
        :: wanted == kind ->
#else
        :: true ->
#endif
            base = n_given - n; /* so many ids count as prompt */
#ifdef RECORD_LAST
            store_ctl(gen, ADMITTED);
            emitted = n;
#else
            emitted = n;
            store_ctl(gen, ADMITTED);
#endif
            do
            :: is_client_gone ->
#ifndef KEEP_ON_EOF
                held = 0;
#endif
                break
            :: cancel_gen == gen ->
                store_ctl(gen, CANCELLED);
                held = 0;
                break
#ifdef NO_STOP_RULE
            :: is_first || n < N ->
#else
            :: n < N ->
#endif
                assert(cancel_life == 0 || cancel_life == life);
#ifdef EMITTED_FIRST
                emitted = n + 1;
                tokens[n] = 10 * kind + base + n + 1;
#else
                tokens[n] = 10 * kind + base + n + 1;
#ifdef END_FIRST
                if
                :: n + 1 == N -> store_ctl(gen, FINISHED)
                :: else
                fi;
#endif
                emitted = n + 1;
#endif
                n++;
                is_first = false
#ifdef NO_STOP_RULE
            :: !is_first && n >= N ->
#else
            :: n >= N ->
#endif
                store_ctl(gen, FINISHED);
                held = 0;
                break
            od;
            is_first = true
        fi
    :: is_client_gone -> break
    od
}

proctype daemons()
{
    byte gen, n_given, n, wanted, base;
    bool is_first;

    do
    :: life < LIVES && !is_client_gone ->
        d_step {
            life++;
            is_killed = false;
            is_first = true;
#ifndef CHANGES
            kind = 1
#endif
        };
#ifdef CHANGES
        if
        :: kind = 1
        :: kind = 2
        fi;
#endif
        is_alive = true;
        {
            serve();
            assert(held == 0)
        } unless {
            is_killed
        };
        d_step { /* all that it had goes with it */
            held = 0;
            is_alive = false;
            do
            :: nempty(requests) -> requests?_, _, _, _
            :: empty(requests) -> break
            od;
            do
            :: nempty(refusals) -> refusals?_
            :: empty(refusals) -> break
            od
        }
    :: else -> break
    od
}

proctype killer()
{
    do
    :: is_alive && !is_killed && life < LIVES -> is_killed = true
    :: life == LIVES || is_client_gone -> break
    od;
    if
    :: is_client_killed = true
    :: true
    fi
}

/* ---- the library, and the application ---- */

byte n_known, record[N + 1], known_kind; /* what the library has handed out, and under which weights */
byte n_told, told_kind;                  /* what the application was told */
byte n_ends;
bool is_cancelled;

inline tell(value)
{
    d_step {
        if
        :: n_told == 0 -> told_kind = value / 10
        :: else
        fi;
        assert(n_told < N);
        assert(value == 10 * told_kind + n_told + 1);
        n_told++
    }
}

inline end(with)
{
    assert(n_ends == 0);
    assert(with != FINISHED || n_told == N);
    n_ends++
}

/* At the slot: ctl before emitted. */
inline look()
{
#ifdef STATE_LAST
    e = emitted;
#endif
    d_step {
        state = ctl;
        g = ctl_gen
    };
#ifndef STATE_LAST
    e = emitted;
#endif
    if
#ifdef NO_GENERATION
    :: state != NOTHING ->
#else
    :: state != NOTHING && g == gen ->
#endif
        assert(e <= N);
        do
        :: n_known < e ->
            record[n_known] = tokens[n_known];
            tell(record[n_known]);
            n_known++
        :: else -> break
        od
    :: else -> state = NOTHING
    fi;
    e = 0;
    g = 0
}

inline end_by_slot()
{
    if
    :: state == FINISHED || state == CANCELLED -> end(state)
    :: else
    fi
}

#define is_lost (!is_alive || life != here)

inline connect()
{
    d_step {
        is_alive ->
        ctl = NOTHING;
        ctl_gen = 0;
        emitted = 0;
        cancel_gen = 0;
        tokens[0] = 0;
        tokens[1] = 0;
        tokens[2] = 0;
        here = life;
        gen = 1;
        if
        :: known_kind == 0 -> known_kind = kind
        :: else
        fi
    };
    if
    :: true
    :: d_step { !is_lost -> /* another request has had the slot, and ended */
        ctl = FINISHED;
        ctl_gen = 1;
        emitted = N;
        gen = 2 }
    fi
}

#ifdef RESUME_FROM_0
#define RESUME_FROM 0
#else
#define RESUME_FROM n_known
#endif


/* Into the lane it has; if that is lost, nobody reads it. */
inline send(from)
{
    if
    :: d_step { !is_lost -> requests!gen, n_known, from, known_kind }
    :: is_lost
    fi
}

#define is_news (ctl_gen == gen && (emitted > n_known || ctl == FINISHED || ctl == CANCELLED))

proctype client()
{
    byte gen, g, e, here;
    mtype state;

    {
    do
    :: n_ends == 0 ->
        if
        :: is_cancelled ->
#ifdef NO_MARK
            skip
#else
            end(CANCELLED);
            break
#endif
        :: else
        fi;
        connect();
        send(RESUME_FROM);
#ifdef HAND_OUT_ALL
        n_known = 0;
#endif
        do
        :: n_ends == 0 && !is_lost && is_news ->
            look();
            end_by_slot()
#ifdef NO_GENERATION
        :: n_ends == 0 && !is_lost && ctl_gen != 0 ->
            look();
            end_by_slot()
#endif
        :: n_ends == 0 && !is_lost && !is_cancelled ->
            d_step {
                is_cancelled = true;
                cancel_life = here
            };
            cancel_gen = gen
#ifdef TWO_ENDS
            ; end(CANCELLED);
            look();
            end_by_slot()
#endif
        :: d_step { n_ends == 0 && !is_lost && nempty(refusals) -> refusals?_ }
#ifdef RESTART
            d_step {
#ifndef NO_FORGET
                n_known = 0;
                n_told = 0; /* it is told so */
#endif
                known_kind = kind
            };
            send(n_known)
#else
            end(NOTHING)
#endif
        :: n_ends > 0 -> break
#ifndef NO_EOF
        :: n_ends == 0 && is_lost ->
            look(); /* the table, once */
            end_by_slot();
            break
#endif
        od
    :: else -> break
    od
    } unless {
        is_client_killed
    };
    assert(is_client_killed || n_ends == 1);
    is_client_gone = true
}

init
{
    atomic {
        ctl = NOTHING;
        run daemons();
        run killer();
        run client()
    }
}
