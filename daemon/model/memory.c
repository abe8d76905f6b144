/* daemon/model/memory.c - /proc/meminfo and the cgroup files, read once at start. */
#include "daemon/model/memory.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "daemon/cache/sizing.h"
#include "daemon/model/message.h"

#define DEFAULT_SHARE    0.6
#define DEFAULT_CONTEXTS 8
#define MIB              (1024.0 * 1024.0)
#define BYTES_MAX        0x1p62 /* more memory than any machine has */
#define POOL_BLOCKS_MAX  (1u << 28)

/* The number after `word` at the beginning of a line; false: no such file or line. */
static bool read_number(const char *path, const char *word, uint64_t *valuep)
{
    char line[256];
    bool found = false;
    FILE *f = fopen(path, "re");

    if (!f)
        return false;
    while (!found && fgets(line, sizeof line, f))
        found = strncmp(line, word, strlen(word)) == 0 &&
                sscanf(line + strlen(word), " %" SCNu64, valuep) == 1;
    fclose(f);
    return found;
}

/* Where a hierarchy of cgroups keeps what we ask. */
static const struct hierarchy {
    uint32_t version;
    const char *folder, *most, *used, *pages;
} hierarchies[] = {
    {2, "/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file "},
    {1, "/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes",
     "total_inactive_file "},
};

/* The path in a line of /proc/self/cgroup, number:controllers:path, if it is of that version and,
 * in version 1, memory's; else NULL. */
static const char *path_in(const char *line, uint32_t version)
{
    const char *controllers = strchr(line, ':'), *path;

    if (!controllers)
        return NULL;
    path = strchr(++controllers, ':');
    if (!path || path[1] != '/')
        return NULL;
    if (version == 2)
        return strncmp(line, "0::", 3) == 0 ? path + 1 : NULL;
    for (const char *at = controllers; at < path; at += strcspn(at, ",:") + 1)
        if (strcspn(at, ",:") == strlen("memory") && strncmp(at, "memory", strlen("memory")) == 0)
            return path + 1;
    return NULL;
}

/* This process's cgroup, "/" at least; false: it is in none of that hierarchy. */
static bool find_cgroup(const char *root, const struct hierarchy *h, char *group, size_t size)
{
    char path[PATH_MAX], line[PATH_MAX];
    bool found = false;
    FILE *f;

    snprintf(path, sizeof path, "%s/proc/self/cgroup", root);
    f = fopen(path, "re");
    if (!f)
        return false;
    while (!found && fgets(line, sizeof line, f)) {
        line[strcspn(line, "\n")] = '\0';
        const char *here = path_in(line, h->version);
        found = here && (size_t)snprintf(group, size, "%s", here) < size;
    }
    fclose(f);
    return found;
}

/* What one cgroup leaves: its limit less what it uses, but file pages that the kernel would give
 * up. */
static uint64_t cgroup_left(const char *root, const struct hierarchy *h, const char *group)
{
    char path[PATH_MAX + 64];
    uint64_t most, used, pages = 0;
    int n = snprintf(path, sizeof path, "%s%s%s/", root, h->folder, group);

    if (n < 0 || (size_t)n + 32 > sizeof path)
        return MEMORY_UNKNOWN;
    strcpy(path + n, h->most);
    if (!read_number(path, "", &most)) /* "max", or none here: the root has no limits */
        return MEMORY_UNKNOWN;
    strcpy(path + n, h->used);
    if (!read_number(path, "", &used))
        return MEMORY_UNKNOWN;
    strcpy(path + n, "memory.stat");
    read_number(path, h->pages, &pages);
    used -= pages < used ? pages : used;
    return most > used ? most - used : 0;
}

/* What is left by all cgroups of a hierarchy that hold this process. */
static uint64_t hierarchy_left(const char *root, const struct hierarchy *h)
{
    char group[PATH_MAX], *slash;
    uint64_t left = MEMORY_UNKNOWN;

    if (!find_cgroup(root, h, group, sizeof group))
        return left;
    do {
        uint64_t here = cgroup_left(root, h, group);

        left = here < left ? here : left;
        slash = strrchr(group, '/');
        if (slash)
            *slash =
                '\0'; /* "" is the root of the hierarchy, which a container's limit is set on */
    } while (slash);
    return left;
}

uint64_t memory_available(const char *root)
{
    char path[PATH_MAX];
    uint64_t available = MEMORY_UNKNOWN, kib;

    snprintf(path, sizeof path, "%s/proc/meminfo", root);
    if (read_number(path, "MemAvailable:", &kib))
        available = kib * 1024;
    for (size_t i = 0; i < sizeof hierarchies / sizeof hierarchies[0]; i++) {
        uint64_t left = hierarchy_left(root, &hierarchies[i]);

        available = left < available ? left : available;
    }
    return available;
}

static int refuse(const struct memory_plan *p, uint64_t n_blocks, const char *advice, char *message)
{
    double cache = (double)n_blocks * (double)p->block_bytes;

    return model_refuse(message, -ENOMEM,
                        "not enough memory: needs %.0f MiB (weights and scratch %.0f MiB, cache "
                        "%.0f MiB for %" PRIu64 " blocks), %.0f MiB free; %s",
                        ((double)p->fixed_bytes + cache) / MIB, (double)p->fixed_bytes / MIB,
                        cache / MIB, n_blocks, (double)p->available_bytes / MIB, advice);
}

/* Cache in so much of the available memory, with fixed_bytes of it gone: n_blocks of it, or as many
 * as fit if that is SIZING_NONE. 0 and *n_blocksp, or a positive outcome of sizing_fit. */
static int fit(const struct memory_plan *p, double available, int64_t n_blocks, uint32_t *n_blocksp)
{
    const struct sizing_costs costs = {
        .available_bytes = available < BYTES_MAX ? (int64_t)available : (int64_t)BYTES_MAX,
        .fixed_bytes = (int64_t)p->fixed_bytes,
        .sector_bytes = (int64_t)p->block_bytes,
        .sector_tokens = 1,
    };
    struct sizing_fit f;
    int r = sizing_fit(&costs, 1, n_blocks, &f);

    *n_blocksp = f.n_sectors < UINT32_MAX ? (uint32_t)f.n_sectors : UINT32_MAX;
    return r;
}

int memory_choose(const struct memory_plan *p, uint32_t *n_blocksp, char *message)
{
    uint64_t contexts = (uint64_t)p->blocks_a_context * DEFAULT_CONTEXTS;
    double available = (double)p->available_bytes, fixed = (double)p->fixed_bytes;

    if (p->n_blocks) {
        if (fit(p, available, p->n_blocks, n_blocksp))
            return refuse(p, p->n_blocks, "lower num_blocks or free memory", message);
        return 0;
    }
    if (p->max_memory_percent > 0) {
        if (fit(p, available * p->max_memory_percent, SIZING_NONE, n_blocksp))
            return refuse(p, 1, "raise max_memory_percent or free memory", message);
        return 0;
    }
    if (fit(p, fixed + (available - fixed) * DEFAULT_SHARE, SIZING_NONE, n_blocksp))
        *n_blocksp = 0;
    if (*n_blocksp > contexts)
        *n_blocksp = (uint32_t)contexts;
    if (*n_blocksp < p->blocks_a_context && fit(p, available, p->blocks_a_context, n_blocksp))
        return refuse(p, p->blocks_a_context,
                      "set num_blocks for less than the model's whole context, or free memory",
                      message);
    return 0;
}

uint32_t memory_choose_pool(const struct memory_pool *p)
{
    uint64_t bytes = p->wanted_bytes, n;

    if (p->share <= 0)
        bytes = 0;
    else if (p->available_bytes == MEMORY_UNKNOWN)
        bytes = bytes == UINT64_MAX ? 0 : bytes;
    else if ((double)bytes > (double)p->available_bytes * p->share)
        bytes = (uint64_t)((double)p->available_bytes * p->share);
    n = bytes / p->block_bytes;
    return n < POOL_BLOCKS_MAX ? (uint32_t)n : POOL_BLOCKS_MAX;
}
