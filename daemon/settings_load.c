/* Where settings come from. inih splits the file into pairs; it is fed line by line by our own
 * reader, for only so do we know the number of the line a pair stood on, and that no line was
 * cut. */
#include "daemon/settings.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <ini.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define FILE_BYTES_MAX 65536

/* ---- the file -------------------------------------------------------------------------------- */

struct file_read {
    struct settings *set;
    const struct settings_warn *warn;
    const char *text, *end;
    int line, error, error_line;
    bool seen[SETTINGS_COUNT];
    char *message;
};

/* fgets for inih. What it can't carry (a NUL, a line longer than its buffer) is our error: inih
 * would take the rest of such a line for another one. */
static char *next_line(char *line, int cap, void *ctx)
{
    struct file_read *f = ctx;
    if (f->error || f->text >= f->end)
        return NULL;
    size_t left = (size_t)(f->end - f->text);
    const char *newline = memchr(f->text, '\n', left);
    size_t n = newline ? (size_t)(newline - f->text) + 1 : left;
    f->line++;
    f->error_line = f->line;
    if (n > (size_t)cap - 1)
        f->error = refuse(f->message, -EINVAL, "the line is longer than %d bytes", cap - 2);
    else if (memchr(f->text, 0, n))
        f->error = refuse(f->message, -EINVAL, "the line holds a NUL");
    if (f->error)
        return NULL;
    memcpy(line, f->text, n);
    line[n] = 0;
    f->text += n;
    return line;
}

static int file_pair(void *ctx, const char *section, const char *name, const char *value)
{
    struct file_read *f = ctx;
    if (f->error)
        return 0;
    f->error_line = f->line;
    char unused[SETTINGS_MESSAGE_MAX];
    int i = settings_meant(name, unused);
    if (*section)
        f->error = refuse(f->message, -EINVAL, "sections such as [%.64s] are not used", section);
    else if (i >= 0 && f->seen[i])
        f->error = refuse(f->message, -EINVAL, "%s is given twice or over two lines", name);
    else
        f->error = settings_set(f->set, name, value, SETTINGS_FILE, f->warn, f->message);
    if (i >= 0)
        f->seen[i] = true;
    return f->error == 0;
}

int settings_text(struct settings *set, const char *path, const char *text, size_t n,
                  const struct settings_warn *warn, char *message)
{
    char why[SETTINGS_MESSAGE_MAX];
    struct file_read f = {.set = set, .warn = warn, .text = text, .end = text + n, .message = why};
    int line = ini_parse_stream(next_line, &f, file_pair, &f);
    if (f.error && (line <= 0 || line >= f.error_line))
        return refuse(message, f.error, "%.200s line %d: %.280s", path, f.error_line, why);
    if (line > 0)
        return refuse(message, -EINVAL, "%.200s line %d: not of the form 'name = value'", path,
                      line);
    return 0;
}

static int load_file(struct settings *set, const char *path, const struct settings_warn *warn,
                     char *message)
{
    struct stat st;
    int r = 0;
    char *text = NULL;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0 || fstat(fd, &st) < 0)
        r = refuse(message, -errno, "can't read %.200s: %s", path, strerror(errno));
    else if (!S_ISREG(st.st_mode) || st.st_size > FILE_BYTES_MAX)
        r = refuse(message, -EINVAL, "%.200s is no file of at most %d bytes", path, FILE_BYTES_MAX);
    else if (!(text = malloc((size_t)st.st_size + 1)))
        r = refuse(message, -ENOMEM, "out of memory");
    if (r == 0) {
        ssize_t n = read(fd, text, (size_t)st.st_size);
        r = n < 0 ? refuse(message, -errno, "can't read %.200s: %s", path, strerror(errno))
                  : settings_text(set, path, text, (size_t)n, warn, message);
    }
    free(text);
    if (fd >= 0)
        close(fd);
    return r;
}

/* ---- environment and command line ------------------------------------------------------------ */

/* Others' variables may begin with CBD_ as well, so unknown ones are not our business. */
static int load_environment(struct settings *set, char *const *env,
                            const struct settings_warn *warn, char *message)
{
    char why[SETTINGS_MESSAGE_MAX];
    for (char *const *e = env; e && *e; e++) {
        char name[SETTINGS_NAME_MAX + 1];
        size_t n = strcspn(*e, "=");
        if (strncmp(*e, "CBD_", 4) != 0 || n - 4 > SETTINGS_NAME_MAX || (*e)[n] != '=')
            continue;
        for (size_t i = 4; i < n; i++)
            name[i - 4] = (char)tolower((unsigned char)(*e)[i]);
        name[n - 4] = 0;
        if (settings_meant(name, why) < 0)
            continue;
        int r = settings_set(set, name, *e + n + 1, SETTINGS_ENVIRONMENT, warn, why);
        if (r)
            return refuse(message, r, "environment %.*s: %.400s", (int)n, *e, why);
    }
    return 0;
}

/* Splits argv[*i] (and takes argv[*i + 1]) into name and value. 0 or -EINVAL with message. */
static int next_option(int argc, char *const *argv, int *i, char name[SETTINGS_NAME_MAX + 1],
                       const char **valuep, char *message)
{
    const char *arg = argv[*i];
    if (strncmp(arg, "--", 2) != 0 || arg[2] == 0)
        return refuse(message, -EINVAL,
                      "'%.64s' is no option; settings are --name value, see --help", arg);
    size_t n = strcspn(arg + 2, "=");
    if (n > SETTINGS_NAME_MAX)
        return refuse(message, -EINVAL, "no setting is called '%.64s...'", arg + 2);
    memcpy(name, arg + 2, n);
    name[n] = 0;
    if (arg[2 + n] == '=')
        *valuep = arg + 3 + n;
    else if (*i + 1 < argc)
        *valuep = argv[++*i];
    else
        return refuse(message, -EINVAL, "--%s has no value", name);
    return 0;
}

int settings_load(struct settings *set, int argc, char *const *argv, char *const *env,
                  const struct settings_warn *warn, char *message)
{
    char name[SETTINGS_NAME_MAX + 1];
    const char *value, *config = NULL;
    settings_init(set);
    for (char *const *e = env; e && *e; e++)
        if (strncmp(*e, "CBD_CONFIG=", 11) == 0 && (*e)[11])
            config = *e + 11;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0)
            return SETTINGS_HELP;
        if (strcmp(argv[i], "--version") == 0 || strcmp(argv[i], "-V") == 0)
            return SETTINGS_VERSION;
        int r = next_option(argc, argv, &i, name, &value, message);
        if (r)
            return r;
        if (strcmp(name, "config") == 0)
            config = value;
    }
    int r = config ? load_file(set, config, warn, message) : 0;
    if (r == 0)
        r = load_environment(set, env, warn, message);
    for (int i = 1; i < argc && r == 0; i++) {
        r = next_option(argc, argv, &i, name, &value, message);
        if (r == 0 && strcmp(name, "config") != 0)
            r = settings_set(set, name, value, SETTINGS_COMMAND_LINE, warn, message);
    }
    return r ? r : settings_check(set, message);
}
