/* client/errors.c - statuses in words, and the last failure of each thread.
 *
 * The words come from the one table that daemon and library share. A failure leaves its numbers in
 * thread-local memory, as errno does, and becomes a sentence only if somebody asks: CB_BUSY must
 * cost nothing. */
#include "client/cbclient.h"

#include "client/internal.h"
#include "shm/status.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#define X(name, number, text) static_assert(name == number, "cbclient.h spells shm/status.h out");
CB_STATUS_TABLE(X)
CB_LIMIT_TABLE(X)
CB_PARAMETER_TABLE(X)
#undef X

static _Thread_local struct {
    int status, errnum;
    uint32_t detail[2];
    char where[512], text[800];
} last;

static const char *status_text(int status)
{
    switch (status) {
#define X(name, number, text) \
    case number:              \
        return text;
        CB_STATUS_TABLE(X)
#undef X
    default:
        return "unknown status";
    }
}

static const char *limit_text(uint32_t limit)
{
    switch (limit) {
#define X(name, number, text) \
    case name:                \
        return text;
        CB_LIMIT_TABLE(X)
#undef X
    default:
        return "a limit of another version's";
    }
}

static const char *parameter_text(uint32_t parameter)
{
    switch (parameter) {
#define X(name, number, text) \
    case name:                \
        return text;
        CB_PARAMETER_TABLE(X)
#undef X
    default:
        return "a parameter of another version's is out of bounds";
    }
}

/* One number as its place in a text wants it. Returns how many characters that takes. */
static int put_number(char *out, size_t bytes, char how, uint32_t number)
{
    float value;
    if (how == 'u')
        return snprintf(out, bytes, "%u", number);
    if (how == 'r')
        return snprintf(out, bytes, "%s", limit_text(number));
    memcpy(&value, &number, sizeof(value));
    return snprintf(out, bytes, "%g", (double)value);
}

/* The text with each %u, %f, and %r for a limit's name, replaced by the next of detail, cut at
 * bytes. %p, which stands alone, is a text that goes on with the detail after its own. */
static void expand(char *out, size_t bytes, const char *text, const uint32_t *detail)
{
    size_t n = 0;
    unsigned k = 0;
    if (!strcmp(text, "%p"))
        text = parameter_text(detail[k++]);
    while (*text && n + 1 < bytes) {
        if (text[0] == '%' && (text[1] == 'u' || text[1] == 'r' || text[1] == 'f')) {
            int w = put_number(out + n, bytes - n, text[1], k < 2 ? detail[k++] : 0);
            n += (size_t)w < bytes - n ? (size_t)w : bytes - n - 1;
            text += 2;
        } else {
            out[n++] = *text++;
        }
    }
    if (bytes)
        out[n] = 0;
}

const char *cb_strerror(int status)
{
    /* The table's texts hold %u where numbers go; a caller who has none gets a text without. */
    switch (status) {
    case CB_BAD_TOKEN:
        return "a token id is outside the vocabulary";
    case CB_TOO_LONG:
        return "prompt and limit together exceed the context; shorten one";
    case CB_NO_CAPACITY:
        return "more cache blocks are needed than there are; lower the limit";
    case CB_BAD_STOP:
        return "a stop list is too long, or holds an empty or malformed stop";
    case CB_BAD_UTF8:
        return "text is not valid UTF-8";
    case CB_BAD_NUL:
        return "text holds a NUL; remove it";
    case CB_BAD_SLOT:
        return "the slot is outside the lane's slots";
    case CB_BAD_GENERATION:
        return "the generation can't follow in this slot";
    case CB_BAD_OPTION:
        return "an option or flag is unknown, doubled or malformed";
    case CB_QUOTA:
        return "more of a resource is needed than this user may have";
    case CB_TOO_LATE:
        return "it would end after its deadline";
    case CB_BAD_PARAMETER:
        return "a parameter of how tokens are chosen is out of bounds";
    case CB_BAD_PLANES:
        return "these planes are not served by this daemon";
    default:
        return status_text(status);
    }
}

const char *cb_explain(int status, const uint32_t detail[2], char *out, size_t bytes)
{
    static const uint32_t none[2];
    expand(out, bytes, status_text(status), detail ? detail : none);
    return out;
}

const char *cb_message(void)
{
    char words[200];
    if (!last.status)
        return status_text(0);
    expand(words, sizeof(words), status_text(last.status), last.detail);
    int n = last.where[0] ? snprintf(last.text, sizeof(last.text), "%s: %s", last.where, words)
                          : snprintf(last.text, sizeof(last.text), "%s", words);
    if (last.errnum && n > 0 && (size_t)n < sizeof(last.text)) {
        char reason[80];
        snprintf(last.text + n, sizeof(last.text) - (size_t)n, " (%s)",
                 strerror_r(last.errnum, reason, sizeof(reason)));
    }
    return last.text;
}

int cb_fail(int status)
{
    return cb_fail_at(NULL, status, 0, 0);
}

int cb_fail_with(int status, uint32_t a, uint32_t b)
{
    return cb_fail_at(NULL, status, a, b);
}

int cb_fail_at(const char *where, int status, uint32_t a, uint32_t b)
{
    last.status = status;
    last.errnum = 0;
    last.where[0] = 0;
    if (where)
        snprintf(last.where, sizeof(last.where), "%s", where);
    last.detail[0] = a;
    last.detail[1] = b;
    return status;
}

int cb_fail_errno(const char *where, int errnum)
{
    cb_fail_at(where, errnum == ENOMEM ? CB_NO_MEMORY : CB_SYSTEM, 0, 0);
    last.errnum = errnum;
    return last.status;
}

const char *cb_version(void)
{
    return "1.0.0";
}
