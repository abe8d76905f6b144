/* Of two lists one may be under way while bells are noted in the other. If it still is when these are
 * to be rung, for whoever rings has lost his core, the loop rings them itself. */
#include "daemon/bells.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "daemon/model/model.h"

int bells_init(struct bells *b, uint32_t n)
{
    *b = (struct bells){.n_max = n};
    for (int i = 0; i < 2; i++)
        b->lists[i].words = calloc(n, sizeof *b->lists[i].words);
    return b->lists[0].words && b->lists[1].words ? 0 : -ENOMEM;
}

void bells_fini(struct bells *b)
{
    for (int i = 0; i < 2; i++) {
        assert(b->lists[i].n == 0);
        free(b->lists[i].words);
        b->lists[i].words = NULL;
    }
}

static void ring_all(void *arg)
{
    const struct bell_list *l = arg;
    for (uint32_t i = 0; i < l->n; i++)
        (void)cb_doorbell_wake(l->words[i]);
}

static void ring_noted(struct bells *b)
{
    struct bell_list *l = &b->lists[b->noted];
    ring_all(l);
    l->n = 0;
}

void bells_settle(struct bells *b)
{
    struct bell_list *under_way = &b->lists[!b->noted];
    ring_noted(b);
    if (under_way->n > 0)
        model_settle(b->model);
    under_way->n = 0;
}

void bells_add(struct bells *b, cb_atomic32 *word)
{
    struct bell_list *l = &b->lists[b->noted];
    if (l->n == b->n_max)
        ring_noted(b);
    l->words[l->n++] = word;
}

/* That the errand is taken says that the one before is over. */
void bells_ring(struct bells *b)
{
    struct bell_list *l = &b->lists[b->noted];
    if (l->n == 0)
        return;
    if (!model_errand(b->model, ring_all, l)) {
        ring_noted(b);
        return;
    }
    b->noted = !b->noted;
    b->lists[b->noted].n = 0;
}
