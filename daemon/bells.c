/* The list is the loop's again when the errand is settled, which is asked before it is touched. */
#include "daemon/bells.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "daemon/model/model.h"

int bells_init(struct bells *b, uint32_t n)
{
    *b = (struct bells){.words = calloc(n, sizeof *b->words), .n_max = n};
    return b->words ? 0 : -ENOMEM;
}

void bells_fini(struct bells *b)
{
    assert(b->n == 0);
    free(b->words);
    b->words = NULL;
}

static void ring_all(void *arg)
{
    const struct bells *b = arg;
    for (uint32_t i = 0; i < b->n; i++)
        (void)cb_doorbell_wake(b->words[i]);
}

void bells_settle(struct bells *b)
{
    if (b->n == 0)
        return;
    if (b->is_out)
        model_settle(b->model);
    else
        ring_all(b);
    b->is_out = false;
    b->n = 0;
}

void bells_add(struct bells *b, cb_atomic32 *word)
{
    if (b->is_out || b->n == b->n_max)
        bells_settle(b);
    b->words[b->n++] = word;
}

void bells_ring(struct bells *b)
{
    if (b->n == 0 || b->is_out)
        return;
    b->is_out = true;
    model_errand(b->model, ring_all, b);
}
