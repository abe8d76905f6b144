/* The reference backend against the double-precision oracle. */
#include "kernels/kernels.h"

#include <criterion/criterion.h>

#include "tests/kernels/ops_common.h"
#include "tests/kernels/oracle.h"

static const struct ops_subject subject = {
    .ops = &backend_reference,
    .oracle = &oracle_backend,
    .limits = ops_limits_f32,
    .page_multiple = 1,
    .head_multiple = 1,
    .seed = 20,
};

TestSuite(reference, .init = kernels_thread_init);

Test(reference, embeds)
{
    ops_run(ops_check_embed, &subject);
}

Test(reference, norms)
{
    ops_run(ops_check_rmsnorm, &subject);
}

Test(reference, hands_on)
{
    ops_run(ops_check_next, &subject);
}

Test(reference, gathers)
{
    ops_run(ops_check_gather, &subject);
}

Test(reference, multiplies)
{
    ops_run(ops_check_linear, &subject);
}

Test(reference, gates)
{
    ops_run(ops_check_gate_up, &subject);
}

Test(reference, makes_queries_keys_values)
{
    ops_run(ops_check_qkv, &subject);
}

Test(reference, attends)
{
    ops_run(ops_check_attention, &subject);
}

Test(reference, forgets_pages)
{
    ops_run(ops_check_reused_pages, &subject);
}

Test(reference, copies_pages)
{
    ops_run(ops_check_copied_pages, &subject);
}

Test(reference, poisons_one_sequence)
{
    ops_run(ops_check_poisoned_keys, &subject);
}

Test(reference, heads)
{
    ops_run(ops_check_head, &subject);
}

Test(reference, samples)
{
    ops_run(ops_check_sample, &subject);
}

Test(reference, samples_as_programs_ask)
{
    ops_run(ops_check_sample_programs, &subject);
}

Test(reference, refuses_at_load)
{
    ops_run(ops_check_refusals, &subject);
}
