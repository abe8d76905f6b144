/* A group's quota holds for all below it, so the least on the way up to the hierarchy's mount is
 * ours. Which file, and where, say /proc/self/cgroup (the group's path) and /proc/self/mountinfo
 * (where its hierarchy is mounted, and what part of it). Both versions may be mounted at once; one
 * of them has the cpu controller. What can't be read is no limit. */
#include "kernels/cpu/cores.h"

#include <limits.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/pool.h"

enum { PATH_BYTES = 1024 };

/* ---- time ------------------------------------------------------------------------------------ */

static FILE *open_file(const char *root, const char *dir, const char *name)
{
    char path[3 * PATH_BYTES];
    int n = snprintf(path, sizeof path, "%s%s/%s", root, dir, name);

    return n > 0 && (size_t)n < sizeof path ? fopen(path, "re") : NULL;
}

/* Whether a list with commas holds "cpu". */
static bool lists_cpu(const char *list)
{
    for (; *list; list += strcspn(list, ","), list += *list == ',')
        if (strcspn(list, ",") == 3 && strncmp(list, "cpu", 3) == 0)
            return true;
    return false;
}

/* The path of this process's group: of version 2, or of the hierarchy of version 1 that has cpu. */
static bool find_group(const char *root, bool is_v2, char path[PATH_BYTES])
{
    char line[2 * PATH_BYTES];
    FILE *f = open_file(root, "/proc/self", "cgroup");
    bool found = false;

    while (f && !found && fgets(line, sizeof line, f)) {
        char *controllers = strchr(line, ':'), *group = NULL;

        if (controllers)
            group = strchr(++controllers, ':');
        if (!group || strlen(group) > PATH_BYTES)
            continue;
        *group++ = 0;
        group[strcspn(group, "\n")] = 0;
        found = is_v2 ? !*controllers : lists_cpu(controllers);
        if (found)
            strcpy(path, group);
    }
    if (f)
        fclose(f);
    return found;
}

/* Where that hierarchy is mounted, and which group of it stands there. */
static bool find_mount(const char *root, bool is_v2, char point[PATH_BYTES], char top[PATH_BYTES])
{
    char line[4 * PATH_BYTES], type[16], options[PATH_BYTES];
    FILE *f = open_file(root, "/proc/self", "mountinfo");
    bool found = false;

    while (f && !found && fgets(line, sizeof line, f)) {
        const char *rest = strstr(line, " - ");

        found = rest && sscanf(line, "%*s %*s %*s %1023s %1023s", top, point) == 2 &&
                sscanf(rest, " - %15s %*s %1023s", type, options) == 2 &&
                (is_v2 ? strcmp(type, "cgroup2") == 0
                       : strcmp(type, "cgroup") == 0 && lists_cpu(options));
    }
    if (f)
        fclose(f);
    return found;
}

/* In whole processors; 0: none. */
static uint32_t quota_of(const char *root, bool is_v2, const char *dir)
{
    long long quota = -1, period = -1;
    FILE *f = open_file(root, dir, is_v2 ? "cpu.max" : "cpu.cfs_quota_us");

    if (f && fscanf(f, is_v2 ? "%lld %lld" : "%lld", &quota, &period) < 1)
        quota = -1; /* "max" */
    if (f)
        fclose(f);
    f = is_v2 ? NULL : open_file(root, dir, "cpu.cfs_period_us");
    if (f && fscanf(f, "%lld", &period) != 1)
        period = -1;
    if (f)
        fclose(f);
    if (quota <= 0 || period <= 0 || quota / period >= UINT32_MAX)
        return 0;
    return (uint32_t)(quota / period + (quota % period != 0));
}

uint32_t cores_quota(const char *root)
{
    uint32_t least = 0;

    for (int is_v2 = 0; is_v2 < 2; is_v2++) {
        char group[PATH_BYTES], point[PATH_BYTES], top[PATH_BYTES], dir[2 * PATH_BYTES];
        const char *below = group;
        size_t n;

        if (!find_group(root, is_v2, group) || !find_mount(root, is_v2, point, top))
            continue;
        /* A container sees its own group at the mount, whatever /proc calls it. */
        n = strcmp(top, "/") == 0 ? 0 : strlen(top);
        if (strncmp(group, top, n) != 0 || (group[n] && group[n] != '/'))
            below = "";
        else
            below += n;
        snprintf(dir, sizeof dir, "%s%s", point, strcmp(below, "/") == 0 ? "" : below);
        for (;;) {
            uint32_t quota = quota_of(root, is_v2, dir);

            if (quota && (!least || quota < least))
                least = quota;
            if (strlen(dir) <= strlen(point))
                break;
            *strrchr(dir, '/') = 0;
        }
    }
    return least;
}

/* ---- cores ----------------------------------------------------------------------------------- */

static long topology_number(int cpu, const char *file)
{
    char path[96];
    long number = -1;
    FILE *f;

    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/topology/%s", cpu, file);
    f = fopen(path, "re");
    if (!f)
        return -1;
    if (fscanf(f, "%ld", &number) != 1)
        number = -1;
    fclose(f);
    return number;
}

uint32_t cores_list(int *cpus, uint32_t cpus_max)
{
    struct {
        long package, core;
    } seen[POOL_THREADS_MAX];
    uint32_t n = 0;
    cpu_set_t allowed;

    if (sched_getaffinity(0, sizeof allowed, &allowed))
        return 0;
    for (int cpu = 0; cpu < CPU_SETSIZE && n < POOL_THREADS_MAX && n < cpus_max; cpu++) {
        long package, core;
        uint32_t i = 0;

        if (!CPU_ISSET(cpu, &allowed))
            continue;
        package = topology_number(cpu, "physical_package_id");
        core = topology_number(cpu, "core_id");
        /* Without a topology every processor counts as a core. */
        while (i < n && (core < 0 || seen[i].package != package || seen[i].core != core))
            i++;
        if (i < n)
            continue;
        cpus[n] = cpu;
        seen[n].package = package;
        seen[n++].core = core;
    }
    return n;
}

uint32_t cores_usable(void)
{
    int cpus[POOL_THREADS_MAX];
    uint32_t n = cores_list(cpus, POOL_THREADS_MAX), quota = cores_quota("");

    if (quota && quota < n)
        n = quota;
    return n ? n : 1;
}
