/* Batches against the real daemon: cb_generate_batch, and `cbctl generate-batch`. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/system/fixture.h"

TestSuite(batch, .timeout = 120);

enum { N_PROMPTS = 300, N_NEW = 12 };

struct prompts {
    uint32_t ids[N_PROMPTS][3];
    struct cb_prompt v[N_PROMPTS];
};

static struct cb_outputs *generate(struct cb_handle *h, const struct cb_prompt *prompts, size_t n)
{
    struct cb_request config;
    struct cb_batch batch;
    struct cb_outputs *outputs;
    cb_request_init(&config);
    config.max_new_tokens = N_NEW;
    cb_batch_init(&batch);
    batch.prompts = prompts;
    batch.n_prompts = n;
    batch.config = &config;
    cr_assert_eq(cb_generate_batch(h, &batch, &outputs), 0, "%s", cb_message());
    return outputs;
}

/* Together they are what each is alone; and a daemon that refuses for now is asked again. */
static void alike(const char *const *settings)
{
    struct system s;
    struct prompts *p = calloc(1, sizeof *p);
    system_init(&s);
    system_start(&s, settings);
    struct cb_handle *h = system_open(&s, NULL);
    for (uint32_t i = 0; i < N_PROMPTS; i++) {
        for (uint32_t k = 0; k < 3; k++)
            p->ids[i][k] = (i * 31 + k * 7) % 49000;
        p->v[i].ids = p->ids[i];
        p->v[i].n_ids = 1 + i % 3;
    }
    struct cb_outputs *all = generate(h, p->v, N_PROMPTS);
    cr_assert_eq(all->n, N_PROMPTS);
    for (uint32_t i = 0; i < N_PROMPTS; i += 37) {
        struct cb_outputs *one = generate(h, &p->v[i], 1);
        cr_expect_eq(all->v[i].n_generated, N_NEW);
        cr_expect_eq(memcmp(all->v[i].generated, one->v[0].generated, N_NEW * sizeof(uint32_t)), 0,
                     "prompt %u", i);
        cb_outputs_free(one);
    }
    cb_outputs_free(all);
    cb_close(h);
    system_settle(&s);
    system_fini(&s);
    free(p);
}

Test(batch, of_many_is_as_of_one)
{
    alike(SETTINGS("--model", "null"));
}

Test(batch, asks_again_where_others_wait)
{
    alike(SETTINGS("--model", "null", "--max_queue_size", "1", "--null_step_us", "300"));
}
