/* Sums that cost a few additions are looked at in each step (engine_audit); the whole, list by list,
 * where tests ask for it and after a repair (engine_check). */
#include <errno.h>

#include "daemon/engine_state.h"

static int unclean(const char **whyp, const char *why)
{
    *whyp = why;
    return -EUCLEAN;
}

static int check_sums(const struct engine *e, const char **whyp)
{
    struct scheduler_counts counts;
    scheduler_counts(e->scheduler, &counts);
    if (counts.n_active + counts.n_waiting + requests_n_free(e->requests) != e->config.max_requests)
        return unclean(whyp, "engine: requests held and free do not add up");
    if (requests_n_faults(e->requests))
        return unclean(whyp, "engine: a request ended and still had blocks");
    if (requests_n_tokens(e->requests) != e->n_held_tokens)
        return unclean(whyp, "engine: tokens held are not the requests'");
    return 0;
}

static void end_broken(struct engine *e, const struct list *head)
{
    for (const struct list *link = head->next; link != head; link = link->next) {
        struct request *r = list_entry(link, struct request, link);
        if (r->is_broken)
            engine_decide(e, r, FINISH_ERROR, CB_INTERNAL);
    }
}

/* Makes the bookkeeping fit together again, at the cost of those requests of which it did not. */
static void repair(struct engine *e)
{
    const char *why;
    scheduler_repair(e->scheduler, e->requests);
    e->n_held_tokens = requests_n_tokens(e->requests);
    end_broken(e, scheduler_active(e->scheduler));
    end_broken(e, scheduler_waiting(e->scheduler));
    engine_end_decided(e);
    if (engine_check(e, &why) == 0)
        return;
    engine_fail_all(e, CB_INTERNAL);
    scheduler_repair(e->scheduler, e->requests);
}

void engine_audit(struct engine *e)
{
    const char *why;
    if (check_sums(e, &why) == 0 && scheduler_audit(e->scheduler, &why) == 0)
        return;
    e->stats.n_violations++;
    e->stats.violation = why;
    repair(e);
}

int engine_check(const struct engine *e, const char **whyp)
{
    int err = check_sums(e, whyp);
    if (err)
        return err;
    const struct list *heads[] = {scheduler_active(e->scheduler), scheduler_waiting(e->scheduler)};
    uint64_t n_tokens = 0;
    uint32_t n_ending = 0, n_decided = 0;
    for (int i = 0; i < 2; i++)
        for (const struct list *link = heads[i]->next; link != heads[i]; link = link->next) {
            const struct request *r = list_entry(link, struct request, link);
            n_tokens += (uint64_t)r->n_prompt + r->max_new_tokens;
            n_decided += r->end.finish != FINISH_NONE;
            if (r->end.finish == FINISH_NONE && r->deadline_ns != 0 &&
                r->deadline_ns < e->next_deadline_ns)
                return unclean(whyp, "engine: a deadline is earlier than the next one");
        }
    for (const struct list *link = e->ending.next; link != &e->ending; link = link->next)
        n_ending++;
    if (n_ending != n_decided)
        return unclean(whyp, "engine: not all decided ends are in the list of ends");
    if (n_tokens != e->n_held_tokens || n_tokens > e->config.max_held_tokens)
        return unclean(whyp, "engine: tokens held are not the requests'");
    return scheduler_check(e->scheduler, !e->in_flight, whyp);
}
