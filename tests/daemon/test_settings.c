/* Settings from every source, every way to get them wrong, and the manual against the table. */
#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/settings.h"

static char message[SETTINGS_MESSAGE_MAX];
static int n_warnings;

static void warn(void *ctx, const char *text)
{
    (void)ctx;
    (void)text;
    n_warnings++;
}

static const struct settings_warn warner = {.warn = warn};

static int set(struct settings *s, const char *name, const char *value)
{
    return settings_set(s, name, value, SETTINGS_COMMAND_LINE, &warner, message);
}

static int load(struct settings *s, char *const *env, int argc, ...)
{
    char *argv[16] = {"cbd"};
    va_list args;
    va_start(args, argc);
    for (int i = 1; i <= argc; i++)
        argv[i] = va_arg(args, char *);
    va_end(args);
    return settings_load(s, argc + 1, argv, env, &warner, message);
}

static int text(struct settings *s, const char *lines)
{
    return settings_text(s, "x.conf", lines, strlen(lines), &warner, message);
}

Test(settings, every_default_is_a_value_that_its_row_allows)
{
    struct settings s;
    char value[SETTINGS_TEXT_MAX], again[SETTINGS_TEXT_MAX];
    settings_init(&s);
    for (uint32_t i = 0; i < SETTINGS_COUNT; i++) {
        const struct setting_row *row = settings_row(i);
        cr_assert_eq(set(&s, row->name, row->preset), 0, "%s", message);
        settings_value(&s, i, value);
        cr_assert_eq(set(&s, row->name, value), 0, "%s", message);
        settings_value(&s, i, again);
        cr_assert_str_eq(value, again);
        cr_assert_eq(s.sources[i], SETTINGS_COMMAND_LINE);
    }
    cr_assert_eq(settings_check(&s, message), 0, "%s", message);
    cr_assert_null(settings_row(SETTINGS_COUNT));
}

Test(settings, numbers_have_units_and_bounds)
{
    struct settings s;
    settings_init(&s);
    cr_assert_eq(set(&s, "max_held_tokens", "3k"), 0);
    cr_assert_eq(s.max_held_tokens, 3072);
    cr_assert_eq(set(&s, "uid-bytes", "2G"), 0);
    cr_assert_eq(s.uid_bytes, 2ull << 30);
    cr_assert_eq(set(&s, "num_blocks", "7"), 0);
    cr_assert_eq(s.num_blocks, 7);
    cr_assert_eq(set(&s, "num_blocks", "none"), 0);
    cr_assert_eq(s.num_blocks, SETTING_NONE);
    cr_assert_eq(set(&s, "safety_margin", "0.25"), 0);
    cr_assert_float_eq(s.safety_margin, 0.25, 1e-12);
    cr_assert_eq(set(&s, "safety_margin", "none"), 0);
    cr_assert_lt(s.safety_margin, 0);
    cr_assert_eq(set(&s, "socket_mode", "0600"), 0);
    cr_assert_eq(s.socket_mode, 0600);
    cr_assert_eq(set(&s, "socket_trust", "yes"), 0);
    cr_assert(s.socket_trust);
    cr_assert_eq(set(&s, "page_size", "3"), -ERANGE);
    cr_assert(strstr(message, "4..65536 tokens"), "%s", message);
    cr_assert_eq(s.page_size, 256, "a refused value must change nothing");
    cr_assert_eq(set(&s, "page_size", "65537"), -ERANGE);
}

Test(settings, what_is_no_value_is_refused)
{
    static const char *const bad[][2] = {
        {"page_size", ""},
        {"page_size", "12x"},
        {"page_size", "-1"},
        {"page_size", " 16"},
        {"page_size", "1e3"},
        {"page_size", "0x10"},
        {"page_size", "none"},
        {"uid_bytes", "99999999999999999999"},
        {"uid_bytes", "17179869184g"},
        {"safety_margin", "nan"},
        {"safety_margin", "inf"},
        {"safety_margin", "-0.1"},
        {"safety_margin", "0.1 "},
        {"safety_margin", "0x1p-1"},
        {"safety_margin", "."},
        {"max_memory_percent", "1.5"},
        {"backend", "gpu"},
        {"backend", ""},
        {"backend", "cpu|reference"},
        {"socket_mode", "8"},
        {"socket_mode", "1777"},
        {"socket_trust", "maybe"},
        {"instance", ""},
        {"instance", "a-name-that-is-longer-than-thirty-one-bytes"},
    };
    struct settings s;
    settings_init(&s);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        message[0] = 0;
        cr_assert_lt(set(&s, bad[i][0], bad[i][1]), 0, "%s = '%s'", bad[i][0], bad[i][1]);
        cr_assert(strstr(message, bad[i][0]), "the message names it: %s", message);
    }
}

Test(settings, unknown_names_suggest_the_nearest)
{
    struct settings s;
    settings_init(&s);
    cr_assert_eq(set(&s, "page_sise", "16"), -ENOENT);
    cr_assert(strstr(message, "page_size"), "%s", message);
    cr_assert_eq(set(&s, "maxbatchtokens", "16"), -ENOENT);
    cr_assert(strstr(message, "max_batch_tokens"), "%s", message);
    cr_assert_eq(set(&s, "tread", "16"), -ENOENT);
    cr_assert(strstr(message, "the nearest is threads"), "%s", message);
    char longer[4096];
    memset(longer, 'a', sizeof longer - 1);
    longer[sizeof longer - 1] = 0;
    cr_assert_eq(set(&s, longer, "16"), -ENOENT);
}

/* Some name or other was suggested, that had nothing to do with what was meant. */
Test(settings, a_name_far_from_all_suggests_none)
{
    static const char *const names[] = {"colour", "xyz", "q", "number_of_threads_to_use"};
    struct settings s;
    settings_init(&s);
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        cr_assert_eq(set(&s, names[i], "16"), -ENOENT);
        cr_expect_null(strstr(message, "nearest"), "%s", message);
        cr_expect(strstr(message, names[i]) && strstr(message, "cbd --help"), "%s", message);
    }
    cr_assert_lt(settings_meant("colour", message), 0);
    cr_expect_null(strstr(message, "nearest"), "%s", message);
}

Test(settings, the_references_names_are_taken)
{
    struct settings s;
    settings_init(&s);
    cr_assert_eq(set(&s, "scheduler_type", "prefill_first"), 0);
    cr_assert_str_eq(s.scheduler, "prefill_first");
    cr_assert_eq(n_warnings, 0);
    cr_assert_eq(set(&s, "block_size", "32"), 0);
    cr_assert_eq(s.block_size, 32);
    cr_assert_eq(n_warnings, 1);
    cr_assert_eq(set(&s, "block_size", "64"), 0);
    cr_assert_eq(n_warnings, 1, "one warning each");
    cr_assert_eq(set(&s, "max_cached_graphs", "5"), 0);
    cr_assert_eq(set(&s, "use_default_compile_configs", "true"), 0);
    cr_assert_eq(n_warnings, 3);
}

Test(settings, a_file_is_lines_of_name_and_value)
{
    struct settings s;
    settings_init(&s);
    cr_assert_eq(
        text(&s, "# first\n\npage_size = 16\n; second\nmodel=/a b\ninstance = x ; a remark\n"), 0,
        "%s", message);
    cr_assert_eq(s.page_size, 16);
    cr_assert_str_eq(s.model, "/a b");
    cr_assert_str_eq(s.instance, "x");
    cr_assert_eq(s.sources[SETTINGS_ROW_page_size], SETTINGS_FILE);
    cr_assert_eq(text(&s, ""), 0);
    cr_assert_eq(text(&s, "page_size = 32"), 0, "no newline at the end");
    cr_assert_eq(s.page_size, 32);
}

Test(settings, a_bad_file_says_which_line)
{
    static const struct {
        const char *lines, *says;
    } bad[] = {
        {"page_size = 16\nnonsense\n", "line 2"},
        {"page_size = 16\n\npage_sise = 3\n", "line 3"},
        {"page_size = 1\n", "line 1"},
        {"[cache]\npage_size = 16\n", "sections"},
        {"page_size = 16\npage_size = 32\n", "twice"},
        {"model = a\n  b\n", "line 2"},
        {"block_size = 16\nblock_size = 32\n", "line 2"},
        {"scheduler_type = fifo\nscheduler = fifo\n", "twice"},
        {"max_memory_percent = 0\n", "0.001..1"}, /* would be taken for none */
        {"model =\n\n= 3\n", "line 3"},
        {"[cache\n", "line 1"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct settings s;
        settings_init(&s);
        cr_assert_lt(text(&s, bad[i].lines), 0, "%s", bad[i].lines);
        cr_assert(strstr(message, bad[i].says), "%s", message);
        cr_assert(strstr(message, "x.conf"), "%s", message);
    }
}

Test(settings, a_file_with_a_nul_or_an_endless_line_is_refused)
{
    struct settings s;
    char longer[5000];
    settings_init(&s);
    cr_assert_lt(settings_text(&s, "x.conf", "page_size = 1\0006\n", 17, NULL, message), 0);
    memset(longer, 'm', sizeof longer - 1);
    longer[sizeof longer - 1] = 0;
    cr_assert_lt(text(&s, longer), 0);
    cr_assert(strstr(message, "line 1"), "%s", message);
}

Test(settings, later_sources_win)
{
    struct settings s;
    char path[] = "/tmp/test_settings.XXXXXX", config[64], variable[80];
    int fd = mkstemp(path);
    cr_assert_geq(fd, 0);
    static const char lines[] = "page_size = 16\nnum_blocks = 10\nthreads = 3\n";
    cr_assert_eq(write(fd, lines, sizeof lines - 1), (ssize_t)sizeof lines - 1);
    close(fd);
    snprintf(config, sizeof config, "--config=%s", path);
    snprintf(variable, sizeof variable, "CBD_CONFIG=%s", path);
    char *env[] = {"CBD_NUM_BLOCKS=20", "CBD_THREADS=4", "CBD_BUILD=x", "PATH=/bin", NULL};
    cr_assert_eq(load(&s, env, 3, "--threads", "5", config), 0, "%s", message);
    cr_assert_eq(s.page_size, 16);
    cr_assert_eq(s.num_blocks, 20);
    cr_assert_eq(s.threads, 5);
    cr_assert_eq(s.sources[SETTINGS_ROW_page_size], SETTINGS_FILE);
    cr_assert_eq(s.sources[SETTINGS_ROW_num_blocks], SETTINGS_ENVIRONMENT);
    cr_assert_eq(s.sources[SETTINGS_ROW_threads], SETTINGS_COMMAND_LINE);
    cr_assert_eq(s.sources[SETTINGS_ROW_max_lanes], SETTINGS_DEFAULT);
    char *by_env[] = {variable, NULL};
    cr_assert_eq(load(&s, by_env, 0), 0, "%s", message);
    cr_assert_eq(s.page_size, 16);
    unlink(path);
    cr_assert_eq(load(&s, by_env, 0), -ENOENT);
    cr_assert(strstr(message, path), "%s", message);
}

Test(settings, the_command_line_is_checked)
{
    struct settings s;
    cr_assert_eq(load(&s, NULL, 1, "--help"), SETTINGS_HELP);
    cr_assert_eq(load(&s, NULL, 1, "-V"), SETTINGS_VERSION);
    cr_assert_eq(load(&s, NULL, 2, "--page-size", "16"), 0);
    cr_assert_eq(s.page_size, 16);
    cr_assert_lt(load(&s, NULL, 1, "--page_size"), 0);
    cr_assert_lt(load(&s, NULL, 1, "page_size=16"), 0);
    cr_assert_lt(load(&s, NULL, 1, "--"), 0);
    cr_assert_lt(load(&s, NULL, 2, "--lane_slots", "2000"), 0, "above lane_slots_max");
    cr_assert_lt(load(&s, NULL, 2, "--instance", "../x"), 0);
    char *env[] = {"CBD_PAGE_SIZE=3", NULL};
    cr_assert_lt(load(&s, env, 0), 0);
    cr_assert(strstr(message, "CBD_PAGE_SIZE"), "%s", message);
    cr_assert_lt(load(&s, NULL, 2, "--config", "/"), 0, "a directory is no file");
}

Test(settings, an_operator_sets_live_rows_only)
{
    struct settings s;
    settings_init(&s);
    cr_assert_eq(settings_set(&s, "spin_us", "7", SETTINGS_OPERATOR, NULL, message), 0);
    cr_assert_eq(s.spin_us, 7);
    cr_assert_eq(settings_set(&s, "page_size", "16", SETTINGS_OPERATOR, NULL, message), -EPERM);
    cr_assert_eq(s.page_size, 256);
}

Test(settings, are_found_by_any_of_their_names)
{
    cr_assert_str_eq(settings_row((uint32_t)settings_meant("page_size", message))->name,
                     "page_size");
    cr_assert_str_eq(settings_row((uint32_t)settings_meant("page-size", message))->name,
                     "page_size");
    cr_assert_str_eq(settings_row((uint32_t)settings_meant("scheduler_type", message))->name,
                     "scheduler");
    cr_assert_eq(settings_meant("page_sice", message), -ENOENT);
    cr_assert(strstr(message, "page_size"), "%s", message);
    cr_assert_eq(settings_meant("colours", message), -ENOENT);
}

/* All of a file, 0-terminated. */
static char *slurp(const char *path)
{
    FILE *f = fopen(path, "r");
    cr_assert(f, "%s", path);
    char *data = calloc(1, 1 << 20);
    size_t n = fread(data, 1, (1 << 20) - 1, f);
    cr_assert_gt(n, 0);
    fclose(f);
    return data;
}

/* A line of the table can't be changed without its paragraph of the manual. */
Test(settings, the_manual_has_every_row_with_default_and_bounds)
{
    char *manual = slurp("daemon/cbd.conf.5");
    for (uint32_t i = 0; i < SETTINGS_COUNT; i++) {
        const struct setting_row *row = settings_row(i);
        char item[80], facts[300], bounds[128];
        snprintf(item, sizeof item, "\n.It Cm %s\n", row->name);
        char *at = strstr(manual, item);
        cr_assert(at, "cbd.conf.5 does not list %s", row->name);
        char *next = strstr(at + 1, "\n.It Cm ");
        setting_bounds(row, bounds, sizeof bounds);
        snprintf(facts, sizeof facts, "Default: %s; allowed: %s.\n",
                 *row->preset ? row->preset : "empty", bounds);
        char *found = strstr(at, facts);
        cr_assert(found && (!next || found < next), "cbd.conf.5 on %s lacks: %s", row->name, facts);
        char *live = strstr(at, "May change while the daemon runs.");
        cr_assert_eq(live && (!next || live < next), (row->flags & SETTING_LIVE) != 0, "%s",
                     row->name);
    }
    free(manual);
}

Test(settings, help_lists_every_row)
{
    char *help = NULL;
    size_t n;
    FILE *out = open_memstream(&help, &n);
    settings_help(out);
    fclose(out);
    for (uint32_t i = 0; i < SETTINGS_COUNT; i++) {
        char option[80];
        snprintf(option, sizeof option, "--%s ", settings_row(i)->name);
        cr_assert(strstr(help, option), "%s", option);
        cr_assert(strstr(help, settings_row(i)->meaning), "%s", option);
    }
    free(help);
}
