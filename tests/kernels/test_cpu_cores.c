/* Control groups as files in a directory of the test's own: what a machine, a container and a
 * service look like. */
#include "kernels/cpu/cores.h"

#include <criterion/criterion.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char root[32];

static void begin(void)
{
    strcpy(root, "/tmp/cores-XXXXXX");
    cr_assert(mkdtemp(root));
}

static int remove_one(const char *path, const struct stat *st, int kind, struct FTW *at)
{
    (void)st;
    (void)kind;
    (void)at;
    return remove(path);
}

static void end(void)
{
    cr_expect_eq(nftw(root, remove_one, 16, FTW_DEPTH | FTW_PHYS), 0);
}

/* root + path, with the directories that lead there. */
static void put(const char *path, const char *text)
{
    char full[256];
    FILE *f;

    snprintf(full, sizeof full, "%s%s", root, path);
    for (char *slash = full + strlen(root) + 1; (slash = strchr(slash, '/')); *slash++ = '/') {
        *slash = 0;
        (void)mkdir(full, 0700);
    }
    f = fopen(full, "w");
    cr_assert(f, "%s", full);
    fputs(text, f);
    cr_assert_eq(fclose(f), 0);
}

static const char unified[] = "24 1 0:21 / /proc rw - proc proc rw\n"
                              "30 24 0:26 / /sys/fs/cgroup rw shared:4 - cgroup2 cgroup2 rw\n";

Test(cpu_cores, version_2_takes_the_least_on_the_way_up)
{
    begin();
    put("/proc/self/cgroup", "0::/a.slice/b.service\n");
    put("/proc/self/mountinfo", unified);
    cr_expect_eq(cores_quota(root), 0, "no files, no limit");
    put("/sys/fs/cgroup/a.slice/b.service/cpu.max", "max 100000\n");
    cr_expect_eq(cores_quota(root), 0);
    put("/sys/fs/cgroup/a.slice/cpu.max", "350000 100000\n");
    cr_expect_eq(cores_quota(root), 4, "of the group around it, rounded up");
    put("/sys/fs/cgroup/a.slice/b.service/cpu.max", "20000 10000\n");
    cr_expect_eq(cores_quota(root), 2);
    put("/sys/fs/cgroup/a.slice/b.service/cpu.max", "1000 100000\n");
    cr_expect_eq(cores_quota(root), 1);
    put("/sys/fs/cgroup/a.slice/b.service/cpu.max", "100000000 1\n");
    cr_expect_eq(cores_quota(root), 4);
    put("/sys/fs/cgroup/a.slice/b.service/cpu.max", "100 0\n");
    cr_expect_eq(cores_quota(root), 4, "nonsense is no limit");
    end();
}

Test(cpu_cores, version_2_in_a_container)
{
    begin();
    put("/proc/self/cgroup", "0::/\n");
    put("/proc/self/mountinfo", unified);
    put("/sys/fs/cgroup/cpu.max", "150000 100000\n");
    cr_expect_eq(cores_quota(root), 2);
    end();
}

Test(cpu_cores, version_1_and_both_at_once)
{
    static const char mounts[] =
        "31 24 0:27 /docker/x /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n"
        "32 24 0:28 /docker/x /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpuacct,cpu\n"
        "33 24 0:29 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
    begin();
    put("/proc/self/cgroup", "5:cpuset:/other\n4:cpuacct,cpu:/docker/x\n0::/docker/x\n");
    put("/proc/self/mountinfo", mounts);
    put("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n");
    put("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1\n");
    put("/sys/fs/cgroup/cpuset/cpu.cfs_quota_us", "100000\n");
    cr_expect_eq(cores_quota(root), 0);
    put("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "250000\n");
    cr_expect_eq(cores_quota(root), 3);
    /* A group below the one that is mounted, and one that is not below it. */
    put("/proc/self/cgroup", "4:cpuacct,cpu:/docker/x/y\n");
    put("/sys/fs/cgroup/cpu,cpuacct/y/cpu.cfs_period_us", "50000\n");
    put("/sys/fs/cgroup/cpu,cpuacct/y/cpu.cfs_quota_us", "100000\n");
    cr_expect_eq(cores_quota(root), 2);
    put("/proc/self/cgroup", "4:cpuacct,cpu:/docker/xyz\n");
    cr_expect_eq(cores_quota(root), 3);
    end();
}

Test(cpu_cores, of_this_machine)
{
    uint32_t quota = cores_quota("");

    cr_expect_eq(cores_quota("/nonexistent"), 0);
    cr_expect_geq(cores_usable(), 1);
    cr_expect_leq((long)cores_usable(), sysconf(_SC_NPROCESSORS_ONLN));
    cr_expect(!quota || cores_usable() <= quota);
}
