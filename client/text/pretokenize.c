/* The patterns are those of the models' own tokenizers, with three changes that do not change what
 * they match there:
 *   - White space is spelled out: PCRE2's \s also takes U+180E, which Unicode gave up as a space.
 *   - SmolLM cuts off each digit first and then splits what lies between, so that a digit ends a
 *     run of spaces as the end of the text does. One pattern says both.
 *   - Nothing but white space can follow white space up to a place where no non-space follows, so
 *     the look-ahead is written as a negated class.
 * The text is known to be UTF-8, so matching skips the check. Each pattern is linear in the length
 * of its match but for stepping back over white space once, so the match limit, made for patterns
 * that are not, is lifted. */
#include "client/text/pretokenize.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "shm/vocab.h"

#define SPACE                                                                                    \
    "\\x09-\\x0d\\x20\\x85\\xa0\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}" \
    "\\x{3000}"
#define SYMBOLS "[^" SPACE "\\p{L}\\p{N}]+"
#define SPACES  "[" SPACE "]+(?![^" SPACE "])|[" SPACE "]+"

#define CONTRACTIONS "'s|'t|'re|'ve|'m|'ll|'d"

static const struct {
    enum cb_vocab_pre pre;
    const char *pattern;
} patterns[] = {
    {CB_PRE_GPT2, CONTRACTIONS "| ?\\p{L}+| ?\\p{N}+| ?" SYMBOLS "|" SPACES},
    {CB_PRE_SMOLLM, "\\p{N}|" CONTRACTIONS "| ?\\p{L}+| ?" SYMBOLS "|[" SPACE "]+(?![^" SPACE
                    "\\p{N}])|[" SPACE "]+"},
    {CB_PRE_LLAMA3, "(?i:" CONTRACTIONS ")|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?" SYMBOLS
                    "[\\r\\n]*|[" SPACE "]*[\\r\\n]+|" SPACES},
    {CB_PRE_QWEN2, "(?i:" CONTRACTIONS ")|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?" SYMBOLS
                   "[\\r\\n]*|[" SPACE "]*[\\r\\n]+|" SPACES},
};

struct cb_splitter {
    pcre2_code *code;
    bool jit;
};

struct cb_splitter_scan {
    pcre2_match_data *match;
    pcre2_match_context *context;
};

int cb_splitter_new(struct cb_splitter **splitterp, uint32_t pre)
{
    const char *pattern = NULL;
    for (size_t i = 0; i < sizeof patterns / sizeof *patterns; i++) {
        if (patterns[i].pre == pre)
            pattern = patterns[i].pattern;
    }
    if (!pattern)
        return -ENOTSUP;

    struct cb_splitter *s = calloc(1, sizeof *s);
    if (!s)
        return -ENOMEM;
    int error;
    size_t error_off;
    s->code = pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED, PCRE2_UTF | PCRE2_UCP,
                            &error, &error_off, NULL);
    if (!s->code) { /* the patterns are ours and compile: it can only be memory */
        cb_splitter_free(s);
        return -ENOMEM;
    }
    s->jit = pcre2_jit_compile(s->code, PCRE2_JIT_COMPLETE) == 0; /* else it is interpreted */
    *splitterp = s;
    return 0;
}

struct cb_splitter *cb_splitter_free(struct cb_splitter *s)
{
    if (s)
        pcre2_code_free(s->code);
    free(s);
    return NULL;
}

int cb_splitter_scan_new(struct cb_splitter_scan **scanp, const struct cb_splitter *s)
{
    struct cb_splitter_scan *scan = calloc(1, sizeof *scan);
    if (!scan)
        return -ENOMEM;
    scan->match = pcre2_match_data_create_from_pattern(s->code, NULL);
    scan->context = pcre2_match_context_create(NULL);
    if (!scan->match || !scan->context) {
        cb_splitter_scan_free(scan);
        return -ENOMEM;
    }
    pcre2_set_match_limit(scan->context, UINT32_MAX);
    *scanp = scan;
    return 0;
}

struct cb_splitter_scan *cb_splitter_scan_free(struct cb_splitter_scan *scan)
{
    if (scan) {
        pcre2_match_data_free(scan->match);
        pcre2_match_context_free(scan->context);
    }
    free(scan);
    return NULL;
}

int cb_splitter_next(const struct cb_splitter *s, struct cb_splitter_scan *scan,
                     const uint8_t *text, size_t n, size_t at, size_t *endp)
{
    const uint32_t options = PCRE2_NO_UTF_CHECK;
    int r;
    if (s->jit)
        r = pcre2_jit_match(s->code, text, n, at, options, scan->match, scan->context);
    else
        r = pcre2_match(s->code, text, n, at, options, scan->match, scan->context);
    if (r == PCRE2_ERROR_JIT_STACKLIMIT)
        r = pcre2_match(s->code, text, n, at, options | PCRE2_NO_JIT, scan->match, scan->context);
    /* The patterns leave no character out; what one left out would be a word. */
    if (r == PCRE2_ERROR_NOMATCH) {
        *endp = n;
        return 0;
    }
    if (r < 0)
        return -ENOMEM; /* the only other refusal that matching without limits has */
    const size_t *ends = pcre2_get_ovector_pointer(scan->match);
    *endp = ends[0] > at ? ends[0] : ends[1];
    return 0;
}
