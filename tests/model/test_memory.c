/* How much memory there is, from a proc and a sys of our own; how much of it the cache gets. */
#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "daemon/model/memory.h"
#include "daemon/model/model.h"

static char root[] = "/tmp/test_memory.XXXXXX";

static void write_file(const char *path, const char *text)
{
    char full[256];
    FILE *f;

    snprintf(full, sizeof full, "%s%s", root, path);
    for (char *slash = strchr(full + sizeof root, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        mkdir(full, 0700);
        *slash = '/';
    }
    f = fopen(full, "w");
    cr_assert_not_null(f);
    fputs(text, f);
    fclose(f);
}

static void remove_root(void)
{
    char command[64];

    snprintf(command, sizeof command, "rm -r %s", root);
    cr_assert_eq(system(command), 0);
}

Test(memory, least_of_system_and_all_cgroups)
{
    cr_assert_not_null(mkdtemp(root));
    cr_expect_eq(memory_available(root), MEMORY_UNKNOWN);
    write_file("/proc/meminfo", "MemTotal: 9000 kB\nMemFree: 10 kB\nMemAvailable:   8000 kB\n");
    cr_expect_eq(memory_available(root), 8000 * 1024);

    write_file("/proc/self/cgroup", "1:name=systemd:/x\n0::/a/b\n");
    cr_expect_eq(memory_available(root), 8000 * 1024);
    write_file("/sys/fs/cgroup/a/b/memory.max", "max\n");
    write_file("/sys/fs/cgroup/a/b/memory.current", "1000\n");
    cr_expect_eq(memory_available(root), 8000 * 1024);
    write_file("/sys/fs/cgroup/a/memory.max", "5000000\n");
    write_file("/sys/fs/cgroup/a/memory.current", "1000000\n");
    cr_expect_eq(memory_available(root), 4000000);
    write_file("/sys/fs/cgroup/a/memory.stat", "anon 5\ninactive_file 300000\n");
    cr_expect_eq(memory_available(root), 4300000);
    write_file("/sys/fs/cgroup/a/b/memory.max", "1500\n");
    cr_expect_eq(memory_available(root), 500);
    write_file("/sys/fs/cgroup/a/b/memory.max", "900\n");
    cr_expect_eq(memory_available(root), 0);

    /* In a container of its own namespace the limit is on the root. */
    write_file("/proc/self/cgroup", "0::/\n");
    write_file("/sys/fs/cgroup/memory.max", "2000\n");
    write_file("/sys/fs/cgroup/memory.current", "500\n");
    cr_expect_eq(memory_available(root), 1500);
    remove_root();
}

Test(memory, cgroups_of_version_1_count_as_well)
{
    cr_assert_not_null(mkdtemp(root));
    write_file("/proc/meminfo", "MemAvailable:   8000 kB\n");
    write_file("/proc/self/cgroup", "9:cpu,cpuacct:/c\n5:memory_not:/d\n4:hugetlb,memory:/a/b\n");
    write_file("/sys/fs/cgroup/memory/d/memory.limit_in_bytes", "1\n");
    write_file("/sys/fs/cgroup/memory/d/memory.usage_in_bytes", "1\n");
    cr_expect_eq(memory_available(root), 8000 * 1024);
    /* No limit is a number too. */
    write_file("/sys/fs/cgroup/memory/a/b/memory.limit_in_bytes", "9223372036854771712\n");
    write_file("/sys/fs/cgroup/memory/a/b/memory.usage_in_bytes", "1000\n");
    cr_expect_eq(memory_available(root), 8000 * 1024);
    write_file("/sys/fs/cgroup/memory/a/memory.limit_in_bytes", "5000000\n");
    write_file("/sys/fs/cgroup/memory/a/memory.usage_in_bytes", "1000000\n");
    write_file("/sys/fs/cgroup/memory/a/memory.stat",
               "inactive_file 9\ntotal_inactive_file 300000\n");
    cr_expect_eq(memory_available(root), 4300000);
    /* Both versions: memory's controller is in one of them. */
    write_file("/proc/self/cgroup", "4:memory:/a\n0::/v2\n");
    write_file("/sys/fs/cgroup/v2/memory.max", "700\n");
    write_file("/sys/fs/cgroup/v2/memory.current", "600\n");
    cr_expect_eq(memory_available(root), 100);
    /* In a container the path is the host's, and the limit is on the root. */
    write_file("/proc/self/cgroup", "4:memory:/docker/1234\n");
    write_file("/sys/fs/cgroup/memory/memory.limit_in_bytes", "2000\n");
    write_file("/sys/fs/cgroup/memory/memory.usage_in_bytes", "500\n");
    cr_expect_eq(memory_available(root), 1500);
    remove_root();
}

static struct memory_plan plan(void)
{
    return (struct memory_plan){
        .available_bytes = 1100u << 20,
        .fixed_bytes = 100u << 20,
        .block_bytes = 1u << 20,
        .blocks_a_context = 50,
    };
}

Test(memory, default_is_the_smaller_of_a_share_and_eight_contexts)
{
    char message[MODEL_MESSAGE_MAX];
    struct memory_plan p = plan();
    uint32_t n;

    cr_assert_eq(memory_choose(&p, &n, message), 0);
    cr_expect_eq(n, 400);
    p.blocks_a_context = 100;
    cr_assert_eq(memory_choose(&p, &n, message), 0);
    cr_expect_eq(n, 600);
    p.blocks_a_context = 900; /* over the share, but one context must fit */
    cr_assert_eq(memory_choose(&p, &n, message), 0);
    cr_expect_eq(n, 900);
    p.available_bytes = MEMORY_UNKNOWN;
    cr_assert_eq(memory_choose(&p, &n, message), 0);
    cr_expect_eq(n, 7200);
}

Test(memory, given_sizes_are_kept)
{
    char message[MODEL_MESSAGE_MAX];
    struct memory_plan p = plan();
    uint32_t n;

    p.n_blocks = 1000;
    cr_assert_eq(memory_choose(&p, &n, message), 0);
    cr_expect_eq(n, 1000);
    p.n_blocks = 0;
    p.max_memory_percent = 0.5;
    cr_assert_eq(memory_choose(&p, &n, message), 0);
    cr_expect_eq(n, 450);
}

Test(memory, too_little_says_how_much_is_needed_and_free)
{
    char message[MODEL_MESSAGE_MAX];
    struct memory_plan p = plan();
    uint32_t n;

    p.n_blocks = 1001;
    cr_assert_eq(memory_choose(&p, &n, message), -ENOMEM);
    cr_expect(strstr(message, "needs 1101 MiB") && strstr(message, "1100 MiB free") &&
                  strstr(message, "num_blocks"),
              "%s", message);
    p.n_blocks = 0;
    p.blocks_a_context = 1001;
    cr_assert_eq(memory_choose(&p, &n, message), -ENOMEM);
    cr_expect(strstr(message, "needs 1101 MiB") && strstr(message, "1100 MiB free"), "%s", message);
    p.max_memory_percent = 0.05;
    cr_assert_eq(memory_choose(&p, &n, message), -ENOMEM);
    cr_expect(strstr(message, "max_memory_percent"), "%s", message);
    p = plan();
    p.fixed_bytes = UINT64_C(5) << 40;
    cr_assert_eq(memory_choose(&p, &n, message), -ENOMEM);
    cr_expect(strstr(message, "weights and scratch 5242880 MiB"), "%s", message);
}

Test(memory, a_pool_is_whole_blocks_within_a_share_of_what_is_left)
{
    struct memory_pool pool = {.available_bytes = 100 << 20,
                               .wanted_bytes = 5500000,
                               .share = 0.8,
                               .block_bytes = 1 << 20};
    cr_expect_eq(memory_choose_pool(&pool), 5);
    pool.wanted_bytes = 1000000;
    cr_expect_eq(memory_choose_pool(&pool), 0, "not one fits");
    pool.wanted_bytes = 90 << 20;
    cr_expect_eq(memory_choose_pool(&pool), 80);
    pool.wanted_bytes = MODEL_POOL_ALL;
    cr_expect_eq(memory_choose_pool(&pool), 80);
    pool.share = 0;
    cr_expect_eq(memory_choose_pool(&pool), 0);
    pool.share = 1;
    pool.available_bytes = 0;
    cr_expect_eq(memory_choose_pool(&pool), 0);
    pool.available_bytes = MEMORY_UNKNOWN;
    cr_expect_eq(memory_choose_pool(&pool), 0, "a share of what nobody knows");
    pool.wanted_bytes = 5500000;
    cr_expect_eq(memory_choose_pool(&pool), 5);
}
