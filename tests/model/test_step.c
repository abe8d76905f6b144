/* Steps through model.h: greedy and sampled rows together, more rows than logits are kept for. */
#include <criterion/criterion.h>
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "tests/model/common.h"
#include "tests/util/feed.h"
#include "tests/util/memory_file.h"
#include "tests/util/tiny.h"

#define N_SEQS     80u /* two chunks and a half of the head's */
#define N_PROMPT   5u
#define SEQ_TOKENS 8u

static struct sample_params params_of(uint32_t seq)
{
    return (struct sample_params){
        .temperature = seq % 3 == 0 ? 0 : 0.5f + (float)(seq % 5) * 0.4f,
        .top_k = seq % 4 == 1 ? 20 : 0,
        .top_p = seq % 5 == 2 ? 0.8f : 1,
        .seed = 1000 + seq,
        .token_idx = seq % 7,
    };
}

static void prompt_of(uint32_t seq, int32_t *ids)
{
    for (uint32_t i = 0; i < N_PROMPT; i++)
        ids[i] = (int32_t)((seq * 31 + i * 101 + seq * i) % TINY_VOCAB);
}

/* One step over sequences [first, first + n). */
static void run_step(struct model *m, struct feed *f, uint32_t first, uint32_t n,
                     struct sample *samples)
{
    struct sample_params params[N_SEQS];
    int32_t ids[N_PROMPT];
    uint64_t ticket;

    feed_begin(f);
    for (uint32_t i = 0; i < n; i++) {
        prompt_of(first + i, ids);
        feed_add(f, first + i, ids, 0, N_PROMPT, FEED_LAST);
        params[i] = params_of(first + i);
    }
    memset(samples, 0xee, n * sizeof samples[0]);
    cr_assert_eq(model_step_submit(m, feed_step(f), params, &ticket), 0);
    cr_assert_eq(model_step_poll(m, ticket, samples), 0);
}

static struct model *open_cpu(const char *path, const char *isa, uint32_t n_threads)
{
    char message[MODEL_MESSAGE_MAX];
    struct model *m;
    const struct model_config config = {
        .path = path,
        .backend = "cpu",
        .backend_config = {.isa = isa, .n_threads = n_threads},
        .kv_dtype = DTYPE_BF16,
        .page_size = 16,
        .n_blocks = N_SEQS,
        .max_batch_tokens = N_SEQS * N_PROMPT,
        .max_batch_seqs = N_SEQS,
    };
    int r = model_open(&m, &config, message);

    if (r == -ENOTSUP)
        return NULL; /* this machine has no such instructions */
    cr_assert_eq(r, 0, "%s", message);
    return m;
}

static bool same(const struct sample *a, const struct sample *b)
{
    return a->token == b->token && a->not_finite == 0 && b->not_finite == 0 &&
           memcmp(&a->logprob, &b->logprob, sizeof a->logprob) == 0;
}

Test(step, a_row_is_what_it_is_alone)
{
    char path[MEMORY_FILE_PATH_MAX];
    struct tiny t = tiny_default();
    struct sample together[N_SEQS], alone;
    struct model *m;
    struct feed *f;
    int fd;

    t.dtype = t.embed_dtype = DTYPE_Q4_1;
    fd = memory_file_gguf(tiny_new(&t), path);
    m = open_cpu(path, NULL, 0);
    cr_assert_not_null(m);
    f = feed_new(m, N_SEQS, SEQ_TOKENS, N_SEQS * N_PROMPT);
    run_step(m, f, 0, N_SEQS, together);
    for (uint32_t i = 0; i < N_SEQS; i++) {
        run_step(m, f, i, 1, &alone);
        cr_expect(same(&alone, &together[i]), "sequence %u: token %u, not %u", i, together[i].token,
                  alone.token);
        cr_expect_lt(together[i].token, TINY_VOCAB);
    }
    feed_free(f);
    model_free(m);
    close(fd);
}

Test(step, instructions_and_threads_cannot_be_told_from_results)
{
    static const char *const isas[] = {"scalar", "avx2", "amx_emulated", "avx512vnni", "auto"};
    char path[MEMORY_FILE_PATH_MAX];
    struct tiny t = tiny_default();
    struct sample first[N_SEQS], samples[N_SEQS];
    bool have_first = false;
    int fd;

    t.dtype = t.embed_dtype = DTYPE_Q4_0;
    t.tied = false;
    fd = memory_file_gguf(tiny_new(&t), path);
    for (size_t i = 0; i < sizeof isas / sizeof isas[0]; i++)
        for (uint32_t n_threads = 1; n_threads <= 3; n_threads++) {
            struct model *m = open_cpu(path, isas[i], n_threads);
            struct feed *f;

            if (!m)
                continue;
            f = feed_new(m, N_SEQS, SEQ_TOKENS, N_SEQS * N_PROMPT);
            run_step(m, f, 0, N_SEQS, samples);
            if (!have_first)
                memcpy(first, samples, sizeof first);
            have_first = true;
            for (uint32_t j = 0; j < N_SEQS; j++)
                cr_expect(same(&samples[j], &first[j]), "%s, %u threads, sequence %u", isas[i],
                          n_threads, j);
            feed_free(f);
            model_free(m);
        }
    close(fd);
}
