/* Other weights of a model that runs: taken as a whole, as if it had been opened with them; or refused
 * with the sentence that says why, and what runs is as it was. */
#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/model/model.h"
#include "tests/model/common.h"
#include "tests/util/memory_file.h"
#include "tests/util/tiny.h"

enum { PAGE = 16, N_TOKENS = 12 };

static struct model *open_tiny(const struct tiny *t, const char *backend)
{
    char path[MEMORY_FILE_PATH_MAX], message[MODEL_MESSAGE_MAX];
    int fd = memory_file_gguf(tiny_new(t), path);
    const struct model_config config = {.path = path,
                                        .backend = backend,
                                        .kv_dtype = DTYPE_F32,
                                        .page_size = PAGE,
                                        .n_blocks = 2,
                                        .max_batch_tokens = 16,
                                        .max_batch_seqs = 2};
    struct model *m;

    cr_assert_eq(model_open(&m, &config, message), 0, "%s", message);
    close(fd);
    cr_assert_eq(model_populate(m, 0, 2), 0);
    return m;
}

/* The likeliest token of a prompt, and its log-probability. */
static struct sample answer(struct model *m)
{
    int32_t tokens[N_TOKENS], positions[N_TOKENS];
    uint32_t slots[N_TOKENS], token_off[] = {0, N_TOKENS}, n_keys[] = {N_TOKENS};
    uint32_t table_off[] = {0, 1}, table[] = {0}, outputs[] = {N_TOKENS - 1};
    const struct sample_params params = {
        .top_p = 1, .logprobs = SAMPLE_RAW, .given_id = SAMPLE_NO_ID};
    struct sample s = {0};
    uint64_t ticket;

    for (int i = 0; i < N_TOKENS; i++) {
        tokens[i] = 20 + 7 * i;
        positions[i] = i;
        slots[i] = (uint32_t)i;
    }
    const struct step step = {.n_tokens = N_TOKENS,
                              .n_seqs = 1,
                              .n_outputs = 1,
                              .tokens = tokens,
                              .positions = positions,
                              .slot_idx = slots,
                              .token_off = token_off,
                              .n_keys = n_keys,
                              .table_off = table_off,
                              .table = table,
                              .output_token_idx = outputs};

    cr_assert_eq(model_clear_block(m, 0, 0), 0);
    cr_assert_eq(model_step_submit(m, &step, &params, &ticket), 0);
    cr_assert_eq(model_step_poll(m, ticket, &s), 0);
    return s;
}

static bool are_alike(const struct sample *a, const struct sample *b)
{
    return a->token == b->token && memcmp(&a->logprob, &b->logprob, sizeof a->logprob) == 0;
}

/* All of it in a row. */
static int reload(struct model *m, int fd, char *message)
{
    int r = model_reload_begin(m, fd, "other weights", message);

    if (!r)
        do
            r = model_reload_some(m, message);
        while (r == MODEL_RELOAD_MORE);
    if (!r)
        model_reload_publish(m);
    close(fd);
    return r;
}

/* Takes o. */
static void refuse(struct model *m, struct gguf_out *o, int error, const char *part)
{
    char path[MEMORY_FILE_PATH_MAX], message[MODEL_MESSAGE_MAX] = "";
    const struct model_info before = *model_info(m);
    struct sample runs = answer(m), now;
    int r = reload(m, memory_file_gguf(o, path), message);

    cr_expect_eq(r, error, "%d, not %d: %s", r, error, message);
    cr_expect(strstr(message, part), "no \"%s\" in: %s", part, message);
    now = answer(m);
    cr_expect(are_alike(&runs, &now), "another answer after: %s", message);
    cr_expect_eq(memcmp(before.fingerprint, model_info(m)->fingerprint, 16), 0);
    cr_expect_eq(before.weight_bytes, model_info(m)->weight_bytes);
}

static void take(const char *backend, enum dtype dtype)
{
    char path[MEMORY_FILE_PATH_MAX], message[MODEL_MESSAGE_MAX];
    struct tiny first = tiny_default(), other = tiny_default();
    struct sample has, wants;
    struct model *m, *fresh;

    first.has_bias = other.has_bias = true;
    other.seed = first.seed + 1;
    other.dtype = other.embed_dtype = dtype;
    m = open_tiny(&first, backend);
    fresh = open_tiny(&other, backend);
    has = answer(m);
    wants = answer(fresh);
    cr_assert(!are_alike(&has, &wants));
    for (int i = 0; i < 3; i++) { /* what is given back is used again */
        cr_assert_eq(reload(m, memory_file_gguf(tiny_new(i == 1 ? &first : &other), path), message),
                     0, "%s", message);
        has = answer(m);
        cr_expect_eq(are_alike(&has, &wants), i != 1);
        cr_expect_eq(memcmp(model_info(m)->fingerprint, model_info(fresh)->fingerprint, 16) == 0,
                     i != 1);
    }
    cr_expect_eq(model_info(m)->weight_bytes, model_info(fresh)->weight_bytes);
    model_free(fresh);
    model_free(m);
}

Test(reload, is_as_if_opened_with_them)
{
    take("reference", DTYPE_F32);
    take("cpu", DTYPE_F32);
    take("cpu", DTYPE_Q4_1); /* another type */
}

Test(reload, what_is_of_another_model)
{
    const struct tiny t = tiny_default();
    struct model *m = open_tiny(&t, "cpu");
    struct tiny u;
    struct gguf_out *o;

    u = t;
    u.n_layers = 3;
    refuse(m, tiny_new(&u), -EINVAL,
           "other weights: llama.block_count is 3, of the model that runs it is 2");
    u = t;
    u.n_ff *= 2;
    refuse(m, tiny_new(&u), -EINVAL, "llama.feed_forward_length is ");
    u = t;
    u.n_kv_heads = 1;
    refuse(m, tiny_new(&u), -EINVAL, "llama.attention.head_count_kv is 1, ");
    u = t;
    u.rope_base *= 2;
    refuse(m, tiny_new(&u), -EINVAL, "llama.rope.freq_base is ");
    u = t;
    u.n_context *= 2;
    refuse(m, tiny_new(&u), -EINVAL, "llama.context_length is ");

    o = gguf_out_new(3);
    gguf_out_string(o, "general.architecture", "mamba");
    refuse(m, o, -ENOTSUP, "architecture 'mamba' is not supported");

    /* The same shapes, and another template. */
    o = gguf_out_new(3);
    tiny_keys(o, &t);
    tiny_vocab(o);
    gguf_out_string(o, "tokenizer.chat_template", "{{ other }}");
    tiny_tensors(o, &t);
    refuse(m, o, -EINVAL, "merges, special tokens, name or chat template are not those");

    o = gguf_out_new(3);
    tiny_keys(o, &t);
    tiny_vocab(o);
    refuse(m, o, -EINVAL, "token_embd.weight");
    model_free(m);
}

/* Writes `now` over the file's first `was`, a string of as many bytes; returns where. */
static unsigned char *spoil(unsigned char *file, size_t bytes, const char *was, const char *now)
{
    unsigned char *at = memmem(file, bytes, was, strlen(was));

    cr_assert(at && strlen(was) == strlen(now));
    return memcpy(at, now, strlen(now));
}

static void refuse_vocab(struct model *m, const unsigned char *file, size_t bytes,
                         const char *fault)
{
    char path[MEMORY_FILE_PATH_MAX], message[MODEL_MESSAGE_MAX] = "", sentence[MODEL_MESSAGE_MAX];
    struct sample runs = answer(m), now;

    snprintf(sentence, sizeof sentence,
             "other weights: %s of the model that runs: other weights must have the same "
             "vocabulary",
             fault);
    cr_expect_eq(reload(m, memory_file(file, bytes, path), message), -EINVAL);
    cr_expect_str_eq(message, sentence);
    now = answer(m);
    cr_expect(are_alike(&runs, &now), "another answer after: %s", message);
}

/* As many tokens, all as long as those that run: one is spelt otherwise; two have changed places; and
 * a special one. */
Test(reload, a_vocabulary_of_the_same_size)
{
    const struct tiny t = tiny_default();
    struct model *m = open_tiny(&t, "cpu");
    struct gguf_out *o = tiny_new(&t);
    size_t bytes;
    unsigned char *file = gguf_out_finish(o, &bytes), *token;

    token = spoil(file, bytes, "jr", "jR");
    spoil(file, bytes, "j r", "j R"); /* its merge */
    refuse_vocab(m, file, bytes, "token 510 is not that");
    spoil(file, bytes, "j R", "j r");
    memcpy(token, "js", 2);
    memcpy(token + 2 + 8, "jr", 2); /* behind the length of the next */
    refuse_vocab(m, file, bytes, "token 510 is not that");
    memcpy(token, "jr", 2);
    memcpy(token + 2 + 8, "js", 2);
    spoil(file, bytes, "<|endoftext|>", "<|endoftexT|>");
    refuse_vocab(m, file, bytes, "merges, special tokens, name or chat template are not those");
    free(file);
    gguf_out_free(o);
    model_free(m);
}

Test(reload, what_is_no_model)
{
    const struct tiny t = tiny_default();
    struct model *m = open_tiny(&t, "cpu");
    struct tiny u = t;
    char path[MEMORY_FILE_PATH_MAX], message[MODEL_MESSAGE_MAX];
    struct sample runs = answer(m), now;
    size_t bytes;
    unsigned char *file;

    cr_expect_eq(reload(m, memory_file("", 0, path), message), -EINVAL);
    cr_expect_str_eq(message,
                     "other weights: not a GGUF file: it is empty; name a .gguf model file");
    cr_expect_lt(reload(m, memory_file("null weights 3\n", 15, path), message), 0);
    cr_expect(strstr(message, "not a GGUF file"), "%s", message);
    cr_expect_lt(reload(m, open("/dev", O_RDONLY | O_DIRECTORY), message), 0);
    u.seed++;
    struct gguf_out *o = tiny_new(&u);
    file = gguf_out_finish(o, &bytes);
    for (size_t i = 0; i < 40; i++) {
        cr_expect_lt(reload(m, memory_file(file, bytes * i / 40, path), message), 0);
        cr_expect(strlen(message) > 0);
    }
    now = answer(m);
    cr_expect(are_alike(&runs, &now));
    free(file);
    gguf_out_free(o);
    model_free(m);
}

Test(reload, of_the_null_model)
{
    static const char *const bad[] = {"",
                                      "null weights \n",
                                      "null weights 1",
                                      "null weights -1\n",
                                      "null weights 1\n ",
                                      "null weights 1x\n",
                                      "GGUF"};
    const struct model_config config = {.path = "null",
                                        .page_size = PAGE,
                                        .n_blocks = 2,
                                        .max_batch_tokens = 16,
                                        .max_batch_seqs = 2};
    char path[MEMORY_FILE_PATH_MAX], message[MODEL_MESSAGE_MAX];
    struct sample first, second, again;
    struct model *m;

    cr_assert_eq(model_open(&m, &config, message), 0, "%s", message);
    cr_assert_eq(model_populate(m, 0, 2), 0);
    first = answer(m);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        cr_expect_eq(reload(m, memory_file(bad[i], strlen(bad[i]), path), message), -EINVAL);
        cr_expect(strstr(message, "other weights: not weights of the null model"), "%s", message);
    }
    again = answer(m);
    cr_expect(are_alike(&first, &again));
    cr_expect_eq(reload(m, memory_file("null weights 7\n", 15, path), message), 0, "%s", message);
    second = answer(m);
    cr_expect_neq(first.token, second.token);
    cr_expect_eq(reload(m, memory_file("null weights 0\n", 15, path), message), 0, "%s", message);
    again = answer(m);
    cr_expect(are_alike(&first, &again));
    model_free(m);
}
