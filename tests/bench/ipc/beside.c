#include "tests/bench/ipc/beside.h"

#include "client/internal.h"
#include "shm/doorbell.h"
#include "tests/bench/ipc/load.h"
#include "tests/bench/ipc/null.h"
#include "tests/bench/ipc/peer.h"

enum { N_BELLS = 20000 }; /* between two breaches of the format */

const char *beside_name(enum beside what)
{
    static const char *const names[] = {"nobody", "spinner", "bad client"};
    return names[what];
}

static void scribble(void *bytes, uint64_t *random)
{
    struct cb_up_hot *hot = bytes;
    *random = *random * 6364136223846793005u + 1442695040888963407u;
    cb_store64(&hot->req_sent, *random, CB_RELAXED);
    cb_store64(&hot->res_taken, *random >> 7, CB_RELAXED);
    cb_store32(&hot->parked, (uint32_t)(*random >> 13), CB_RELAXED);
}

_Noreturn static void spin(void)
{
    static struct cb_up_hot own;
    for (uint64_t random = 1;;)
        scribble(&own, &random);
}

_Noreturn static void harm(struct place *place)
{
    uint64_t random = 1;
    for (;;) {
        struct cb_handle *h = null_open(place, CB_WAIT_ECO, 4);
        if (!h)
            continue; /* kept out for a while; it asks again at full speed */
        struct cb_link *link = h->link;
        for (int i = 0; i < N_BELLS; i++)
            (void)cb_doorbell_send(link->sock, CB_RECORD_BELL);
        for (int i = 0; i < N_BELLS && cb_doorbell_send(link->sock, CB_RECORD_BELL) == 0; i++)
            scribble(link->up.base, &random);
        cb_close(h);
    }
}

pid_t beside_start(struct place *place, enum beside what)
{
    if (what == BESIDE_NOBODY)
        return 0;
    pid_t pid = peer_fork(-1);
    if (pid == 0) {
        peer_free();
        if (what == BESIDE_SPINNER)
            spin();
        harm(place);
    }
    return pid;
}
