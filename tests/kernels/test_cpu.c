/* The cpu backend, at every level this machine has: what its results lose against the
 * double-precision oracle, and that they are the contract's to the bit. Whether a batch, its
 * cutting or the number of threads changes them is test_cpu_bits.c's. */
#include "kernels/kernels.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <string.h>

#include "kernels/cpu/isa.h"
#include "tests/kernels/contract.h"
#include "tests/kernels/ops_common.h"
#include "tests/kernels/oracle.h"

TestSuite(cpu, .init = kernels_thread_init);
TestSuite(contract, .init = kernels_thread_init);

/* Runs one check at every level, with a different number of threads each. */
static void each_level(void (*check)(const struct ops_subject *), struct ops_subject subject)
{
    const struct level *level;

    for (uint32_t i = 0; (level = isa_level_at(i)); i++) {
        subject.config = (struct backend_config){.n_threads = 1 + i % 3, .isa = level->name};
        /* Bits are the same whatever the inputs; how large the largest error is depends on them. */
        subject.seed += !subject.limits;
        ops_run(check, &subject);
    }
}

static const struct ops_subject near = {
    .ops = &backend_cpu,
    .oracle = &oracle_backend,
    .limits = ops_limits_cpu,
    .page_multiple = 16,
    .head_multiple = 2,
    .seed = 22,
};

static void is_near(void (*check)(const struct ops_subject *))
{
    each_level(check, near);
}

static void keeps_contract(void (*check)(const struct ops_subject *))
{
    struct ops_subject subject = near;

    subject.oracle = &contract_backend;
    subject.limits = NULL;
    each_level(check, subject);
}

Test(cpu, embeds)
{
    is_near(ops_check_embed);
}

Test(cpu, norms)
{
    is_near(ops_check_rmsnorm);
}

Test(cpu, hands_on)
{
    is_near(ops_check_next);
}

Test(cpu, gathers)
{
    is_near(ops_check_gather);
}

Test(cpu, multiplies)
{
    is_near(ops_check_linear);
}

Test(cpu, gates)
{
    is_near(ops_check_gate_up);
}

Test(cpu, makes_queries_keys_values)
{
    is_near(ops_check_qkv);
}

Test(cpu, attends)
{
    is_near(ops_check_attention);
}

Test(cpu, forgets_pages)
{
    is_near(ops_check_reused_pages);
}

Test(cpu, copies_pages)
{
    is_near(ops_check_copied_pages);
}

Test(cpu, poisons_one_sequence)
{
    is_near(ops_check_poisoned_keys);
}

Test(cpu, heads)
{
    is_near(ops_check_head);
}

Test(cpu, samples)
{
    is_near(ops_check_sample);
}

Test(cpu, samples_as_programs_ask)
{
    is_near(ops_check_sample_programs);
}

Test(cpu, refuses_at_load)
{
    is_near(ops_check_refusals);
}

/* As the tests of whole models have it. */
Test(cpu, is_near_the_reference_backend)
{
    void (*const checks[])(const struct ops_subject *) = {
        ops_check_embed, ops_check_rmsnorm,   ops_check_linear, ops_check_gate_up,
        ops_check_qkv,   ops_check_attention, ops_check_head,   ops_check_sample,
    };
    struct ops_subject subject = near;

    subject.oracle = &backend_reference;
    subject.config.n_threads = 2;
    for (size_t i = 0; i < sizeof checks / sizeof checks[0]; i++)
        ops_run(checks[i], &subject);
}

Test(contract, embeds)
{
    keeps_contract(ops_check_embed);
}

Test(contract, norms)
{
    keeps_contract(ops_check_rmsnorm);
}

Test(contract, multiplies)
{
    keeps_contract(ops_check_linear);
}

Test(contract, gates)
{
    keeps_contract(ops_check_gate_up);
}

Test(contract, makes_queries_keys_values)
{
    keeps_contract(ops_check_qkv);
}

Test(contract, attends)
{
    keeps_contract(ops_check_attention);
}

Test(contract, heads)
{
    keeps_contract(ops_check_head);
}

Test(contract, forgets_pages)
{
    keeps_contract(ops_check_reused_pages);
}

Test(contract, copies_pages)
{
    keeps_contract(ops_check_copied_pages);
}

Test(cpu, refuses_unknown_levels)
{
    static const char *const names[] = {"avx1024", "", "AVX2", "avx512bf16", "amx"};
    char expected[256] = "isa: this machine has: ";
    uint32_t n_levels = 0;

    for (; isa_level_at(n_levels); n_levels++) {
        strcat(expected, n_levels ? ", " : "");
        strcat(expected, isa_level_at(n_levels)->name);
    }
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        const struct backend_config config = {.n_threads = 1, .isa = names[i]};
        struct backend *b = NULL;
        const char *why = NULL;
        bool is_known = false;

        for (uint32_t l = 0; l < n_levels; l++)
            is_known = is_known || !strcmp(isa_level_at(l)->name, names[i]);
        if (is_known)
            continue;
        cr_assert_eq(backend_cpu.open(&b, &config, &why), -ENOTSUP, "%s", names[i]);
        cr_assert_null(b);
        cr_expect_str_eq(why, expected);
    }
}

/* The best level is one that is there, and not the one for tests. */
Test(cpu, chooses_a_level)
{
    const struct backend_config config = {.n_threads = 1, .isa = "auto"};
    struct backend_caps caps;
    struct backend *b = NULL;
    const char *why;
    bool is_known = false;

    cr_assert_eq(backend_cpu.open(&b, &config, &why), 0);
    backend_cpu.caps(b, &caps);
    for (uint32_t i = 0; isa_level_at(i); i++)
        is_known = is_known || !strcmp(isa_level_at(i)->name, caps.isa);
    cr_expect(is_known, "%s", caps.isa);
    cr_expect_str_neq(caps.isa, "amx_emulated");
    backend_cpu.close(b);
}

Test(cpu, refuses_too_many_threads)
{
    const struct backend_config config = {.n_threads = 257, .isa = "scalar"};
    struct backend *b = NULL;
    const char *why = NULL;

    cr_assert_eq(backend_cpu.open(&b, &config, &why), -EINVAL);
    cr_assert_null(b);
    cr_expect_str_eq(why, "threads: at most 256");
}

Test(cpu, pages_of_codes_are_little_more_than_half)
{
    struct kv_shape shape = {30, 3, 64, 256, 1, DTYPE_BF16};
    size_t bf16 = backend_cpu.kv_page_bytes(&shape);

    cr_expect_eq(bf16, (size_t)2 * 2 * 64 * 3 * 256 * 30);
    shape.dtype = DTYPE_U8;
    cr_expect_eq(backend_cpu.kv_page_bytes(&shape), bf16 / 128 * 72);
}

Test(cpu, says_what_it_is)
{
    const struct backend_config config = {.n_threads = 3, .isa = "scalar"};
    struct backend_caps caps;
    struct backend *b = NULL;
    const char *why;

    cr_assert_eq(backend_cpu.open(&b, &config, &why), 0);
    backend_cpu.caps(b, &caps);
    cr_expect_str_eq(caps.name, "cpu");
    cr_expect_str_eq(caps.isa, "scalar");
    cr_expect_eq(caps.n_threads, 3);
    backend_cpu.close(b);
}
