/* Whole model files that must not open, each with the sentence that says why; and one that does. */
#include <criterion/criterion.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/model/model.h"
#include "tests/util/memory_file.h"
#include "tests/util/tiny.h"

static struct model_config config_of(const char *path)
{
    return (struct model_config){
        .path = path,
        .backend = "reference",
        .kv_dtype = DTYPE_F32,
        .page_size = 16,
        .max_batch_tokens = 32,
        .max_batch_seqs = 4,
    };
}

static void refuse_config(const struct model_config *config, int error, const char *part)
{
    char message[MODEL_MESSAGE_MAX] = "";
    struct model *m = NULL;
    int r = model_open(&m, config, message);

    cr_expect_eq(r, error, "%d, not %d: %s", r, error, message);
    cr_expect(strstr(message, part), "no \"%s\" in: %s", part, message);
    model_free(r ? NULL : m);
}

/* Takes o. */
static void refuse(struct gguf_out *o, int error, const char *part)
{
    char path[MEMORY_FILE_PATH_MAX];
    int fd = memory_file_gguf(o, path);
    struct model_config config = config_of(path);

    refuse_config(&config, error, part);
    close(fd);
}

Test(open, tells_what_it_opened)
{
    char path[MEMORY_FILE_PATH_MAX], message[MODEL_MESSAGE_MAX];
    struct tiny t = tiny_default();
    int fd = memory_file_gguf(tiny_new(&t), path);
    struct model_config config = config_of(path);
    const struct model_info *info;
    struct model *m;
    uint64_t first[2], second[2];

    cr_assert_eq(model_open(&m, &config, message), 0, "%s", message);
    info = model_info(m);
    cr_expect_str_eq(info->name, "tiny");
    cr_expect_str_eq(info->arch, "llama");
    cr_expect(info->n_vocab == TINY_VOCAB && info->n_context == 256 && info->n_layers == 2);
    cr_expect(info->page_size == 16 && info->n_blocks == 8 * 256 / 16);
    cr_expect_eq(info->block_bytes, 2u * 2 * 2 * 16 * 16 * sizeof(float));
    cr_expect(info->n_eos == 1 && info->eos[0] == 0 && info->bos == 0xffffffff && !info->add_bos);
    cr_expect_not_null(model_vocab(m));
    cr_expect_str_eq(info->caps.name, "reference");
    memcpy(first, info->fingerprint, sizeof first);
    model_free(m);

    /* The same file again; then one value of one tensor differs; then only the cache's type. */
    cr_assert_eq(model_open(&m, &config, message), 0);
    cr_expect(memcmp(first, model_info(m)->fingerprint, sizeof first) == 0);
    model_free(m);
    config.kv_dtype = DTYPE_BF16;
    cr_assert_eq(model_open(&m, &config, message), 0);
    cr_expect(memcmp(first, model_info(m)->fingerprint, sizeof first) != 0);
    memcpy(second, model_info(m)->fingerprint, sizeof second);
    model_free(m);
    config.kv_dtype = DTYPE_U8;
    cr_assert_eq(model_open(&m, &config, message), 0);
    cr_expect_eq(model_info(m)->block_bytes, 2u * 2 * 2 * 16 * (16 + 8));
    cr_expect(memcmp(first, model_info(m)->fingerprint, sizeof first) != 0);
    cr_expect(memcmp(second, model_info(m)->fingerprint, sizeof second) != 0);
    model_free(m);
    config.kv_dtype = DTYPE_F32;
    cr_assert_eq(pwrite(fd, "\x01", 1, lseek(fd, -4, SEEK_END)), 1);
    cr_assert_eq(model_open(&m, &config, message), 0);
    cr_expect(memcmp(first, model_info(m)->fingerprint, sizeof first) != 0);
    model_free(m);
    close(fd);
}

/* Results that depend on the batch are others' than those of the contract, wherever they may
 * depend on it and do. */
Test(open, bf16_is_another_fingerprint)
{
    static const char *const isas[] = {"scalar", "amx_emulated"};
    char path[MEMORY_FILE_PATH_MAX], message[MODEL_MESSAGE_MAX];
    struct tiny t = tiny_default();
    int fd = memory_file_gguf(tiny_new(&t), path);
    struct model_config config = config_of(path);
    uint64_t first[2];

    config.backend = "cpu";
    for (int i = 0; i < 4; i++) {
        bool is_bf16 = i == 3;
        struct model *m;

        config.backend_config.isa = isas[i / 2];
        config.backend_config.batch_variant = i % 2;
        if (i / 2 && !__builtin_cpu_supports("avx2"))
            break;
        cr_assert_eq(model_open(&m, &config, message), 0, "%s", message);
        if (!i)
            memcpy(first, model_info(m)->fingerprint, sizeof first);
        cr_expect_eq(memcmp(first, model_info(m)->fingerprint, sizeof first) != 0, is_bf16, "%s %d",
                     isas[i / 2], i % 2);
        cr_expect_eq(model_info(m)->caps.bf16_tokens != 0, is_bf16);
        model_free(m);
    }
    close(fd);
}

Test(open, parts_that_are_missing_or_misshapen)
{
    static const float zeros[2 * 160 * 64];
    struct tiny t = tiny_default(), other = t;
    struct gguf_out *o = gguf_out_new(3);

    tiny_keys(o, &t);
    tiny_tensors(o, &t);
    refuse(o, -ENOTSUP, "tokenizer.ggml.model"); /* no tokenizer at all */

    o = gguf_out_new(3);
    tiny_keys(o, &t);
    tiny_vocab(o);
    refuse(o, -EINVAL, "tensor 'token_embd.weight' is missing");

    other.n_layers = 1;
    o = gguf_out_new(3);
    tiny_keys(o, &t);
    tiny_vocab(o);
    tiny_tensors(o, &other);
    refuse(o, -EINVAL, "tensor 'blk.1.attn_norm.weight' is missing");

    o = gguf_out_new(3);
    tiny_keys(o, &other);
    tiny_vocab(o);
    tiny_tensors(o, &t);
    refuse(o, -ENOTSUP, "tensor 'blk.1.attn_norm.weight' at byte");

    other = t;
    other.n_ff = 96;
    o = gguf_out_new(3);
    tiny_keys(o, &t);
    tiny_vocab(o);
    tiny_tensors(o, &other);
    refuse(o, -EINVAL, "has the shape [64, 96, 1, 1]; the keys of the file ask for [64, 160]");

    o = tiny_new(&t);
    gguf_out_tensor(o, "blk.0.ffn_gate.bias", DTYPE_F32, 0, 160, zeros);
    refuse(o, -ENOTSUP, "tensor 'blk.0.ffn_gate.bias' at byte");

    o = tiny_new(&t);
    gguf_out_tensor(o, "rope_freqs.weight", DTYPE_F32, 0, 8, zeros);
    refuse(o, -EINVAL, "'rope_freqs.weight': value 0 is 0");
}

Test(open, cut_anywhere)
{
    char path[MEMORY_FILE_PATH_MAX], message[MODEL_MESSAGE_MAX];
    struct tiny t = tiny_default();
    struct gguf_out *o;
    struct model *m;
    size_t n;
    uint8_t *file;

    t.n_layers = 1;
    t.n_embd = 32;
    t.n_ff = 32;
    o = tiny_new(&t);
    file = gguf_out_finish(o, &n);
    for (size_t cut = 0; cut < n; cut += 97) {
        int fd = memory_file(file, cut, path);
        struct model_config config = config_of(path);

        cr_assert_lt(model_open(&m, &config, message), 0, "cut at %zu", cut);
        close(fd);
    }
    free(file);
    gguf_out_free(o);
}

Test(open, settings_that_do_not_fit)
{
    char path[MEMORY_FILE_PATH_MAX];
    struct tiny t = tiny_default();
    int fd = memory_file_gguf(tiny_new(&t), path);
    struct model_config config = config_of(path);

    config.backend = "abacus";
    refuse_config(&config, -ENOTSUP, "backend 'abacus' is not known");
    config = config_of(path);
    config.backend_config.isa = "mmx";
    refuse_config(&config, -ENOTSUP, "backend 'reference': ");
    config = config_of(path);
    config.backend = "cpu";
    config.backend_config.isa = "mmx";
    refuse_config(&config, -ENOTSUP, "backend 'cpu': isa: this machine has: scalar");
    config = config_of(path);
    config.backend = "cpu";
    config.page_size = 24;
    config.n_blocks = 4;
    refuse_config(&config, -EINVAL,
                  "cache of 4 blocks of 24 tokens (F32): the cpu backend needs a page size that "
                  "is a multiple of 16 tokens: Invalid argument");
    config = config_of(path);
    config.n_blocks = 0xfffffff0; /* petabytes */
    refuse_config(&config, -ENOMEM, "num_blocks");
    close(fd);
    config = config_of("/nonexistent/model.gguf");
    refuse_config(&config, -ENOENT, "/nonexistent/model.gguf: cannot open the model file: No such");
}

/* ---- a file that changes while it is loaded -------------------------------------------------- */

struct cutter {
    int fd;
    uint64_t at, done_bytes; /* when so much is done, cut to that many bytes */
    uint64_t last_done, total;
    uint32_t n_calls;
};

static int cut(void *ctx, uint64_t done_bytes, uint64_t total_bytes)
{
    struct cutter *c = ctx;

    cr_expect(done_bytes > c->last_done && done_bytes <= total_bytes);
    if (c->last_done < c->done_bytes && done_bytes >= c->done_bytes)
        cr_assert_eq(ftruncate(c->fd, (off_t)c->at), 0);
    c->last_done = done_bytes;
    c->total = total_bytes;
    c->n_calls++;
    return 0;
}

/* 19 MiB, so that much of it is not yet read when the first pieces are. */
static struct gguf_out *large(void)
{
    struct tiny t = tiny_default();

    t.n_embd = 256;
    t.n_ff = 3072;
    t.head_dim = 64;
    return tiny_new(&t);
}

Test(open, a_file_that_shrinks_while_it_is_loaded)
{
    char path[MEMORY_FILE_PATH_MAX], part[128];

    for (int without_uring = 0; without_uring < 2; without_uring++) {
        int fd = memory_file_gguf(large(), path);
        struct model_config config = config_of(path);
        off_t bytes = lseek(fd, 0, SEEK_END);
        struct cutter c = {.fd = fd, .at = 14 << 20, .done_bytes = 1 << 20};

        config.without_uring = without_uring;
        config.progress = cut;
        config.progress_ctx = &c;
        snprintf(part, sizeof part,
                 ": the file had %ld bytes when it was opened, and no more than %d when they",
                 bytes, 14 << 20);
        refuse_config(&config, -EINVAL, part);
        close(fd);
    }
}

/* What was in the file's place before the cut is loaded; nothing is read twice. */
Test(open, a_file_that_shrinks_behind_the_reader)
{
    char path[MEMORY_FILE_PATH_MAX], message[MODEL_MESSAGE_MAX];
    int fd = memory_file_gguf(large(), path);
    struct model_config config = config_of(path);
    struct cutter c = {.fd = fd, .at = 0, .done_bytes = UINT64_MAX};
    struct model *m;
    uint64_t whole[2];

    config.progress = cut;
    config.progress_ctx = &c;
    cr_assert_eq(model_open(&m, &config, message), 0, "%s", message);
    memcpy(whole, model_info(m)->fingerprint, sizeof whole);
    model_free(m);
    cr_expect(c.last_done == c.total && c.total > 18 << 20 && c.n_calls > 19);
    c = (struct cutter){.fd = fd, .at = 0, .done_bytes = c.total};
    cr_assert_eq(model_open(&m, &config, message), 0, "%s", message);
    cr_expect(memcmp(whole, model_info(m)->fingerprint, sizeof whole) == 0);
    cr_expect_eq(lseek(fd, 0, SEEK_END), 0);
    model_free(m);
    close(fd);
}

static int cancel_third(void *ctx, uint64_t done_bytes, uint64_t total_bytes)
{
    uint32_t *n_calls = ctx;

    cr_expect_lt(done_bytes, total_bytes);
    return ++*n_calls == 3;
}

Test(open, a_load_that_is_ended)
{
    char path[MEMORY_FILE_PATH_MAX];

    for (int without_uring = 0; without_uring < 2; without_uring++) {
        int fd = memory_file_gguf(large(), path);
        struct model_config config = config_of(path);
        uint32_t n_calls = 0;

        config.without_uring = without_uring;
        config.progress = cancel_third;
        config.progress_ctx = &n_calls;
        refuse_config(&config, -ECANCELED, "the load was ended");
        cr_expect_eq(n_calls, 3);
        close(fd);
    }
}

struct trembler {
    int fd;
    size_t least, most; /* bytes; the head is within the least */
    _Atomic bool stop;
};

/* Cuts the file anywhere behind its head and makes it as long again, for ever. */
static void *tremble(void *arg)
{
    struct trembler *t = arg;
    size_t range = t->most - t->least;

    for (size_t i = 0; !atomic_load(&t->stop); i++) {
        cr_assert_eq(ftruncate(t->fd, (off_t)(t->least + i * 1000003 % range)), 0);
        cr_assert_eq(ftruncate(t->fd, (off_t)t->most), 0);
        usleep(200); /* so that it is mostly found whole when it is opened */
    }
    return NULL;
}

/* Any answer will do, and no signal. */
Test(open, a_file_that_shrinks_at_any_moment)
{
    char path[MEMORY_FILE_PATH_MAX], message[MODEL_MESSAGE_MAX];
    struct trembler other = {.fd = memory_file_gguf(large(), path), .least = 1 << 20};
    pthread_t thread;

    other.most = (size_t)lseek(other.fd, 0, SEEK_END);
    cr_assert_eq(pthread_create(&thread, NULL, tremble, &other), 0);
    for (int i = 0; i < 30; i++) {
        struct model_config config = config_of(path);
        struct model *m = NULL;
        int r;

        config.without_uring = i % 2;
        message[0] = '\0';
        r = model_open(&m, &config, message);
        cr_expect(r == 0 || message[0], "%d without a word", r);
        model_free(r ? NULL : m);
    }
    atomic_store(&other.stop, true);
    pthread_join(thread, NULL);
    close(other.fd);
}
