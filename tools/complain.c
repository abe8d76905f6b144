/* Numbers are taken whole or refused: what is given is said back, and what can be had. */
#include "tools/complain.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

void cbctl_complain(const struct cbctl *ctl, const char *format, ...)
{
    va_list args;

    fprintf(stderr, "cbctl %s: ", ctl->command);
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fputc('\n', stderr);
}

bool cbctl_number(const struct cbctl *ctl, const char *option, const char *text, double least,
                  double most, double *valuep)
{
    char *end;
    double v;

    errno = 0;
    v = strtod(text, &end);
    if (end == text || *end || errno || !(v >= least && v <= most)) {
        cbctl_complain(ctl, "%s is \"%s\", which is no number from %.10g to %.10g", option, text,
                       least, most);
        return false;
    }
    *valuep = v;
    return true;
}

bool cbctl_whole(const struct cbctl *ctl, const char *option, const char *text, uint64_t least,
                 uint64_t most, uint64_t *valuep)
{
    bool is_hex = text[0] == '0' && (text[1] == 'x' || text[1] == 'X');
    char *end;
    unsigned long long v;

    errno = 0;
    v = strtoull(text, &end, is_hex ? 16 : 10);
    /* strtoull would take blanks and a sign in front. */
    if (*text < '0' || *text > '9' || *end || errno || v < least || v > most) {
        cbctl_complain(ctl, "%s is \"%s\", which is no whole number from %llu to %llu", option,
                       text, (unsigned long long)least, (unsigned long long)most);
        return false;
    }
    *valuep = v;
    return true;
}
