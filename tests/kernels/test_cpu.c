/* The cpu backend, at every level this machine has, against the double-precision oracle. Whether
 * the levels agree with each other to the bit is test_cpu_bits.c's. */
#include "kernels/kernels.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <string.h>

#include "kernels/cpu/isa.h"
#include "tests/kernels/ops_common.h"
#include "tests/kernels/oracle.h"

TestSuite(cpu, .init = kernels_thread_init);

/* Runs one check at every level, with a different number of threads each. */
static void each_level(void (*check)(const struct ops_subject *))
{
    const struct level *level;

    for (uint32_t i = 0; (level = isa_level_at(i)); i++) {
        const struct ops_subject subject = {
            .ops = &backend_cpu,
            .config = {.n_threads = 1 + i % 3, .isa = level->name},
            .oracle = &oracle_backend,
            .limits = &ops_limits_cpu,
            .page_multiple = 16,
            .dim_multiple = 16,
            .seed = 21 + i,
        };

        check(&subject);
    }
}

Test(cpu, embeds)
{
    each_level(ops_check_embed);
}

Test(cpu, norms)
{
    each_level(ops_check_rmsnorm);
}

Test(cpu, hands_on)
{
    each_level(ops_check_next);
}

Test(cpu, gathers)
{
    each_level(ops_check_gather);
}

Test(cpu, multiplies)
{
    each_level(ops_check_linear);
}

Test(cpu, gates)
{
    each_level(ops_check_gate_up);
}

Test(cpu, makes_queries_keys_values)
{
    each_level(ops_check_qkv);
}

Test(cpu, attends)
{
    each_level(ops_check_attention);
}

Test(cpu, forgets_pages)
{
    each_level(ops_check_reused_pages);
}

Test(cpu, copies_pages)
{
    each_level(ops_check_copied_pages);
}

Test(cpu, heads)
{
    each_level(ops_check_head);
}

Test(cpu, samples)
{
    each_level(ops_check_sample);
}

Test(cpu, refuses_at_load)
{
    each_level(ops_check_refusals);
}

Test(cpu, refuses_unknown_levels)
{
    const struct backend_config config = {.n_threads = 1, .isa = "avx1024"};
    struct backend *b = NULL;
    const char *why = NULL;

    cr_assert_eq(backend_cpu.open(&b, &config, &why), -ENOTSUP);
    cr_assert_null(b);
    for (uint32_t i = 0; isa_level_at(i); i++)
        cr_expect(strstr(why, isa_level_at(i)->name), "\"%s\" does not list %s", why,
                  isa_level_at(i)->name);
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
