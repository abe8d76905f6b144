/* 32 processes with 8 requests each at once: every result is what the same request gives alone, in
 * every configuration. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "tests/system/storm.h"
#include "tests/util/tiny.h"

TestSuite(storm, .timeout = 400);

static void answer_on(struct storm *st, const char *const *settings)
{
    struct system s;
    system_init(&s);
    system_start(&s, settings);
    storm_answer_all(st, &s);
    system_settle(&s);
    system_fini(&s);
}

Test(storm, null_model_in_every_configuration)
{
    static const char *const batches[] = {"16", "2048"}, *const pages[] = {"16", "256"},
                             *const schedulers[] = {"fifo", "prefill_first"},
                             *const loops[] = {"uring", "epoll"};
    struct storm st;
    storm_init(&st, &(struct storm_scale){.seed = 7,
                                          .n_vocab = 49152,
                                          .n_distinct = STORM_CLIENTS * STORM_EACH,
                                          .prompt_usual = 80,
                                          .prompt_max = 600,
                                          .new_usual = 60,
                                          .new_max = 200});
    answer_on(&st, SETTINGS("--model", "null"));
    uint64_t n_resets = 0;
    for (int i = 0; i < 16; i++) {
        /* Few blocks: about four requests fit, and those that grow push others out. */
        const char *blocks = i & 8 ? "2048" : i & 2 ? "5" : "64";
        n_resets += storm_rage(
            &st, SETTINGS("--model", "null", "--max_batch_tokens", batches[i & 1], "--page_size",
                          pages[i >> 1 & 1], "--scheduler", schedulers[i >> 2 & 1], "--loop",
                          loops[(i ^ i >> 1 ^ i >> 2) & 1], "--num_blocks", blocks,
                          "--cpu_offload_space", i & 4 ? "0.00001" : "0"));
    }
    cr_expect_gt(n_resets, 0, "no cache was too small");
    storm_fini(&st);
}

static void tiny_storm_init(struct storm *st, struct system *files, char path[128])
{
    struct tiny tiny = tiny_default();
    system_init(files);
    snprintf(path, 128, "%s/tiny.gguf", files->dir);
    tiny.dtype = tiny.embed_dtype = DTYPE_Q4_1;
    tiny.n_context = 1024;
    struct gguf_out *out = tiny_new(&tiny);
    gguf_out_save(out, path);
    gguf_out_free(out);
    storm_init(st, &(struct storm_scale){.seed = 8,
                                         .n_vocab = TINY_VOCAB,
                                         .n_distinct = STORM_CLIENTS * STORM_EACH,
                                         .prompt_usual = 24,
                                         .prompt_max = 300,
                                         .new_usual = 16,
                                         .new_max = 60});
}

Test(storm, tiny_model_in_every_configuration)
{
    static const char *const isas[] = {"scalar", "avx2", "avx512vnni", "amx_emulated"};
    struct storm st;
    struct system files;
    char path[128];
    tiny_storm_init(&st, &files, path);
    answer_on(&st, SETTINGS("--model", path, "--threads", "1", "--isa", "scalar"));
    /* Under a sanitizer seven of them: each setting both ways, each isa. */
    for (int i = 0; i < 32; i += IS_SANITIZED ? 5 : 1) {
        const char *isa = isas[i / 8];
        if (i / 8 && !has_isa(isa))
            continue;
        storm_rage(&st, SETTINGS("--model", path, "--isa", isa, "--threads", i & 1 ? "1" : "2",
                                 "--max_batch_tokens", i & 2 ? "16" : "2048", "--page_size",
                                 i & 4 ? "16" : "256"));
    }
    storm_fini(&st);
    system_fini(&files);
}

Test(storm, tiny_model_with_8_bit_keys_and_values)
{
    struct storm st;
    struct system files;
    char path[128];
    tiny_storm_init(&st, &files, path);
    answer_on(&st,
              SETTINGS("--model", path, "--kv_dtype", "u8", "--threads", "1", "--isa", "scalar"));
    storm_rage(&st, SETTINGS("--model", path, "--kv_dtype", "u8", "--threads", "2",
                             "--max_batch_tokens", "64", "--page_size", "16"));
    storm_fini(&st);
    system_fini(&files);
}

/* Half of the sixteen ways, so chosen that each three of the four settings meet in all eight
 * ways. */
Test(storm, default_model)
{
    static const char *const isas[] = {"avx2", "avx512vnni"};
    const char *model = default_model();
    struct storm st;
    if (!model || IS_SANITIZED)
        return;
    storm_init(&st, &(struct storm_scale){.seed = 9,
                                          .n_vocab = 49152,
                                          .n_distinct = 64,
                                          .prompt_usual = 6,
                                          .prompt_max = 32,
                                          .new_usual = 5,
                                          .new_max = 12});
    answer_on(&st, SETTINGS("--model", model));
    for (int i = 0; i < 8; i++) {
        const char *isa = isas[(i ^ i >> 1 ^ i >> 2) & 1];
        if (has_isa(isa))
            storm_rage(&st, SETTINGS("--model", model, "--isa", isa, "--threads", i & 1 ? "1" : "2",
                                     "--max_batch_tokens", i & 2 ? "16" : "2048", "--page_size",
                                     i & 4 ? "16" : "256"));
    }
    storm_fini(&st);
}
