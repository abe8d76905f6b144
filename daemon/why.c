/* The nearest reason is given, of several: whoever lifts it may ask again. */
#include "daemon/why.h"

#include <stdio.h>

#include "daemon/engine.h"

void why_request(const struct daemon *d, const struct client_slot *s, char words[WHY_MAX])
{
    if (d->pauses.is_on)
        snprintf(words, WHY_MAX, "the daemon is paused, by %u holders; see `cbctl resume`",
                 pauses_n_holders(&d->pauses));
    else if (!s->client->lane)
        snprintf(words, WHY_MAX, "its client is gone: it ends before the next step");
    else
        engine_request_why(d->engine, s->request, words, WHY_MAX);
}

void why_lane(const struct daemon *d, const struct client *cl, char words[WHY_MAX])
{
    const struct settings *set = d->config.settings;
    const struct quota_use *use = &cl->quota->use;
    struct cb_lane_info info;
    cb_lane_info(cl->lane, &info);
    if (!info.waits)
        snprintf(words, WHY_MAX, "nothing waits to be taken in; %u requests are in", cl->n_running);
    else if (!cl->waits)
        snprintf(words, WHY_MAX,
                 "its next request waits for room in the lane, until its client takes results and "
                 "releases requests");
    else if (use->n_requests >= set->uid_requests)
        snprintf(words, WHY_MAX,
                 "its next request waits until one of its user's ends: %u are in, of %u "
                 "(uid_requests)",
                 use->n_requests, (unsigned)set->uid_requests);
    else if (use->waiting_tokens >= set->uid_waiting_tokens / 2)
        snprintf(words, WHY_MAX,
                 "its next request waits until its user's have fewer prompt tokens: %llu are in, "
                 "of %llu (uid_waiting_tokens)",
                 (unsigned long long)use->waiting_tokens,
                 (unsigned long long)set->uid_waiting_tokens);
    else
        snprintf(words, WHY_MAX,
                 "its next request waits until another ends: all together are at max_requests or "
                 "max_held_tokens, or at the last eighth, which is for users who have less");
}
