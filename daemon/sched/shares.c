/* Users with requests stand in a list that is sorted anew each round: it is nearly in order, so
 * that costs a look at each. A user who went away is remembered for a while, for else one could
 * come back to be lifted less than it was charged; whoever is far behind is forgotten first, for
 * the next lift would take it further anyway. */
#include "daemon/sched/shares.h"

#include <errno.h>
#include <stdlib.h>

#include "daemon/base/refuse.h"

enum { IDLE_MAX = 64, TOKEN_PROMPT = 1, TOKEN_GENERATED = 2 };

struct shares {
    struct share *table; /* [n_table] */
    uint32_t n_table, n_busy, n_idle;
    struct list busy, idle, free;
    struct share *last; /* whose queue was the last to become empty; NULL: forgotten, or none yet */
    uint64_t floor;     /* no lift is to less */
    uint64_t n_lifts;
    struct share_weights weights;
};

static uint32_t weight_of(const struct share_weights *weights, uint32_t uid)
{
    for (uint32_t i = 0; i < weights->n; i++)
        if (weights->of[i].uid == uid)
            return weights->of[i].weight;
    return 1;
}

/* A whole number up to `most` at *textp, which moves behind it. */
static bool number(const char **textp, uint64_t most, uint32_t *np)
{
    uint64_t n = 0;
    const char *c = *textp;
    for (; *c >= '0' && *c <= '9' && n <= most; c++)
        n = n * 10 + (uint64_t)(*c - '0');
    if (c == *textp || n > most)
        return false;
    *np = (uint32_t)n;
    *textp = c;
    return true;
}

int share_weights_parse(const char *text, struct share_weights *weights, char *message)
{
    struct share_weights w = {0};
    const char *c = text;
    while (*c) {
        struct share_weight one;
        size_t at = (size_t)(c - text);
        if (w.n == SHARE_WEIGHTS_MAX)
            return refuse(message, -EINVAL, "uid_weights names more than %d users",
                          SHARE_WEIGHTS_MAX);
        if (!number(&c, UINT32_MAX, &one.uid) || *c++ != '=' ||
            !number(&c, SHARE_WEIGHT_MAX, &one.weight) || one.weight == 0 || (*c && *c != ','))
            return refuse(message, -EINVAL,
                          "uid_weights makes no sense from '%s' on; give UID=WEIGHT, weights 1 to "
                          "%d, as in 1000=2,1001=1",
                          text + at, SHARE_WEIGHT_MAX);
        for (uint32_t i = 0; i < w.n; i++)
            if (w.of[i].uid == one.uid)
                return refuse(message, -EINVAL, "uid_weights names user %u twice", one.uid);
        w.of[w.n++] = one;
        c += *c == ',';
    }
    *weights = w;
    return 0;
}

int shares_new(struct shares **sharesp, uint32_t max_requests)
{
    struct shares *s = calloc(1, sizeof *s);
    if (!s)
        return -ENOMEM;
    s->n_table = max_requests + IDLE_MAX + 1;
    s->table = calloc(s->n_table, sizeof *s->table);
    if (!s->table) {
        shares_free(s);
        return -ENOMEM;
    }
    list_init(&s->busy);
    list_init(&s->idle);
    list_init(&s->free);
    for (uint32_t i = 0; i < s->n_table; i++)
        list_append(&s->free, &s->table[i].link);
    *sharesp = s;
    return 0;
}

struct shares *shares_free(struct shares *s)
{
    if (s) {
        free(s->table);
        free(s);
    }
    return NULL;
}

void shares_set_weights(struct shares *s, const struct share_weights *weights)
{
    s->weights = *weights;
    for (uint32_t i = 0; i < s->n_table; i++)
        s->table[i].weight = weight_of(weights, s->table[i].uid);
}

static struct share *find_in(const struct list *head, uint32_t uid)
{
    for (struct list *link = head->next; link != head; link = link->next) {
        struct share *share = list_entry(link, struct share, link);
        if (share->uid == uid)
            return share;
    }
    return NULL;
}

const struct share *shares_find(const struct shares *s, uint32_t uid)
{
    return find_in(&s->busy, uid);
}

static struct share *take_place(struct shares *s, uint32_t uid)
{
    struct share *share = list_entry(s->free.next, struct share, link);
    list_remove(&share->link);
    *share = (struct share){.uid = uid, .weight = weight_of(&s->weights, uid)};
    list_init(&share->link);
    queue_clear(&share->queue);
    return share;
}

/* The least that a user with nobody waiting is lifted to. */
static uint64_t lift_of(const struct shares *s)
{
    uint64_t least = UINT64_MAX;
    for (const struct list *link = s->busy.next; link != &s->busy; link = link->next) {
        const struct share *other = list_entry(link, struct share, link);
        if (other->queue.n > 0 && other->counter < least)
            least = other->counter;
    }
    if (least != UINT64_MAX)
        return least;
    return s->last && s->last->counter > s->floor ? s->last->counter : s->floor;
}

struct share *shares_enter(struct shares *s, uint32_t uid)
{
    struct share *share = find_in(&s->busy, uid);
    if (!share) {
        share = find_in(&s->idle, uid);
        if (share) {
            list_remove(&share->link);
            s->n_idle--;
        } else {
            share = take_place(s, uid);
        }
        list_append(&s->busy, &share->link);
        s->n_busy++;
    }
    if (share->queue.n == 0) {
        uint64_t lift = lift_of(s);
        if (share->counter < lift)
            share->counter = lift;
        share->lifted = ++s->n_lifts;
    }
    share->n_requests++;
    return share;
}

/* Of the idle, the one that has the least to lose. */
static void forget_one(struct shares *s)
{
    struct share *least = NULL;
    for (struct list *link = s->idle.next; link != &s->idle; link = link->next) {
        struct share *share = list_entry(link, struct share, link);
        if (!least || share->counter < least->counter)
            least = share;
    }
    if (least == s->last) {
        s->floor = least->counter > s->floor ? least->counter : s->floor;
        s->last = NULL;
    }
    list_remove(&least->link);
    list_prepend(&s->free, &least->link);
    s->n_idle--;
}

void shares_leave(struct shares *s, struct share *share)
{
    if (--share->n_requests > 0)
        return;
    list_remove(&share->link);
    list_append(&s->idle, &share->link);
    s->n_busy--;
    if (++s->n_idle > IDLE_MAX)
        forget_one(s);
}

void shares_forget_requests(struct shares *s)
{
    while (!list_is_empty(&s->busy)) {
        struct share *share = list_entry(s->busy.next, struct share, link);
        queue_clear(&share->queue);
        share->n_requests = 1;
        shares_leave(s, share);
    }
}

void shares_note_empty(struct shares *s, struct share *share)
{
    s->last = share;
}

void share_charge(struct share *share, uint32_t n_prompt, uint32_t n_generated)
{
    uint64_t cost = (uint64_t)TOKEN_PROMPT * n_prompt + (uint64_t)TOKEN_GENERATED * n_generated;
    share->counter += cost * SHARE_UNIT / share->weight;
}

static bool is_before(const struct share *a, const struct share *b)
{
    if (a->counter != b->counter)
        return a->counter < b->counter;
    return a->lifted > b->lifted;
}

uint32_t shares_rank(struct shares *s)
{
    struct list *link, *after, *to;
    uint32_t rank = 0;
    list_for_each (link, after, &s->busy) {
        const struct share *share = list_entry(link, struct share, link);
        for (to = link->prev; to != &s->busy; to = to->prev)
            if (!is_before(share, list_entry(to, struct share, link)))
                break;
        if (to == link->prev)
            continue;
        list_remove(link);
        list_prepend(to, link);
    }
    list_for_each (link, after, &s->busy)
        list_entry(link, struct share, link)->rank = rank++;
    return rank;
}

uint32_t shares_n(const struct shares *s)
{
    return s->n_busy;
}

const struct list *shares_all(const struct shares *s)
{
    return &s->busy;
}
