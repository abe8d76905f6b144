/* Memory for what is preempted is kept from being swapped out where the daemon may lock so much; else it
 * says why not: once in its log, and in what it shows. */
#include <criterion/criterion.h>
#include <linux/capability.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include "tests/system/fixture.h"
#include "tests/util/tiny.h"

TestSuite(pinned, .timeout = 60);

enum { POOL_KIB = 1024 };
#define POOL "--model", "null", "--cpu_offload_space", "0.0009765625"

/* What the kernel says that the process has locked. */
static unsigned long locked_kib(const struct system *s)
{
    char path[32], line[128];
    unsigned long kib = 0;
    snprintf(path, sizeof path, "/proc/%d/status", (int)s->pid);
    FILE *f = fopen(path, "r");
    cr_assert(f);
    while (fgets(line, sizeof line, f))
        if (sscanf(line, "VmLck: %lu kB", &kib) == 1)
            break;
    fclose(f);
    return kib;
}

static void expect_shown(const struct system *s, bool is_pinned, const char *words)
{
    json_t *reply = system_cbctl(s, SETTINGS("settings", "cpu_offload_space"));
    json_t *list = json_is_array(reply) ? reply : json_object_get(reply, "settings");
    const char *effect = json_string_value(json_object_get(json_array_get(list, 0), "effect"));
    char *log = system_log(s), *at, said[256];
    cr_expect(effect && strncmp(effect, words, strlen(words)) == 0, "%s",
              effect ? effect : "no effect");
    snprintf(said, sizeof said, "for what is preempted: %s", words);
    at = strstr(log, said);
    cr_expect(at && !strstr(at + 1, said), "once in %s", log);
    free(log);
    json_decref(reply);
    cr_expect_eq(system_counter(s, "pool_pinned"), is_pinned);
    cr_expect_eq(locked_kib(s), is_pinned ? POOL_KIB : 0);
}

Test(pinned, where_it_may_be)
{
    struct rlimit limit;
    struct system s;
    cr_assert_eq(getrlimit(RLIMIT_MEMLOCK, &limit), 0);
    if (geteuid() != 0 && limit.rlim_cur < POOL_KIB << 10) {
        fprintf(stderr, "skipped: RLIMIT_MEMLOCK is below %d KiB\n", POOL_KIB);
        return;
    }
    system_init(&s);
    system_start(&s, SETTINGS(POOL));
    expect_shown(&s, true, "pinned");
    system_fini(&s);
    for (int i = 0; i < 2; i++) {
        struct tiny t = tiny_default();
        char path[128];
        system_init(&s);
        snprintf(path, sizeof path, "%s/tiny.gguf", s.dir);
        struct gguf_out *o = tiny_new(&t);
        gguf_out_save(o, path);
        gguf_out_free(o);
        system_start(&s, SETTINGS("--model", path, "--backend", i ? "cpu" : "reference",
                                  "--cpu_offload_space", "0.0009765625", "--page_size", "32"));
        cr_expect_eq(system_counter(&s, "pool_pinned"), 1);
        /* Whole blocks of it, and whole pages of the machine. */
        cr_expect(locked_kib(&s) > POOL_KIB * 3 / 4 && locked_kib(&s) <= POOL_KIB + 4, "%lu KiB",
                  locked_kib(&s));
        unlink(path);
        system_fini(&s);
    }
}

Test(pinned, where_it_may_not_it_says_why)
{
    struct rlimit limit = {64 << 10, 64 << 10};
    struct system s;
    system_init(&s);
    cr_assert_eq(setrlimit(RLIMIT_MEMLOCK, &limit), 0);
    /* No limit applies to who has that; a process that has it is root's. */
    (void)prctl(PR_CAPBSET_DROP, CAP_IPC_LOCK);
    system_start(&s, SETTINGS(POOL));
    expect_shown(&s, false,
                 "not pinned, it may be swapped out: RLIMIT_MEMLOCK lets 64 KiB be locked, and it "
                 "has 1024; raise that");
    system_fini(&s);
}

Test(pinned, nothing_is_said_where_there_is_no_such_memory)
{
    struct system s;
    system_init(&s);
    system_start(&s, SETTINGS("--model", "null"));
    json_t *reply = system_cbctl(&s, SETTINGS("settings", "cpu_offload_space"));
    json_t *list = json_is_array(reply) ? reply : json_object_get(reply, "settings");
    cr_expect_null(json_object_get(json_array_get(list, 0), "effect"));
    json_decref(reply);
    cr_expect_eq(system_counter(&s, "pool_pinned"), 0);
    system_fini(&s);
}
