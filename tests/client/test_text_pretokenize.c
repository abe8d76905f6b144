/* How each pre-tokenizer cuts; the expected words are those of the models' own tokenizers. */
#include "client/text/pretokenize.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "shm/vocab.h"

/* The words of text, "|" between them. */
static void expect(enum cb_vocab_pre pre, const char *text, const char *words)
{
    struct cb_splitter *splitter;
    struct cb_splitter_scan *scan;
    size_t n = strlen(text), n_joined = 0;
    char joined[256];
    cr_assert_eq(cb_splitter_new(&splitter, pre), 0);
    cr_assert_eq(cb_splitter_scan_new(&scan, splitter), 0);
    for (size_t at = 0, end; at < n; at = end) {
        cr_assert_eq(cb_splitter_next(splitter, scan, (const uint8_t *)text, n, at, &end), 0);
        cr_assert(end > at && end <= n);
        if (at > 0)
            joined[n_joined++] = '|';
        memcpy(joined + n_joined, text + at, end - at);
        n_joined += end - at;
    }
    joined[n_joined] = '\0';
    cr_assert_str_eq(joined, words, "pre-tokenizer %d, \"%s\": %s", pre, text, joined);
    cb_splitter_scan_free(scan);
    cb_splitter_free(splitter);
}

Test(pretokenize, gpt2)
{
    expect(CB_PRE_GPT2, "Hello world", "Hello| world");
    expect(CB_PRE_GPT2, "it's, IT'S we'll", "it|'s|,| IT|'|S| we|'ll");
    expect(CB_PRE_GPT2, "a 123456 b12", "a| 123456| b|12");
    expect(CB_PRE_GPT2, "a   b\n\n c  ", "a|  | b|\n\n| c|  ");
    expect(CB_PRE_GPT2, "x\t\ty", "x|\t|\t|y");
    expect(CB_PRE_GPT2, "na\u00efve \u65e5\u672c\uff01?!", "na\u00efve| \u65e5\u672c|\uff01?!");
    expect(CB_PRE_GPT2, "a\u00a0b\u3000\u3000c", "a|\u00a0|b|\u3000|\u3000|c");
    expect(CB_PRE_GPT2, "a\u180eb", "a|\u180e|b"); /* no space, though PCRE2 takes it for one */
    expect(CB_PRE_GPT2, " \u180e", " \u180e");
}

Test(pretokenize, smollm_cuts_digits_one_by_one)
{
    expect(CB_PRE_SMOLLM, "a 123 b1c", "a| |1|2|3| b|1|c");
    expect(CB_PRE_SMOLLM, "a   1", "a|   |1"); /* the digit ends the spaces as an end would */
    expect(CB_PRE_SMOLLM, "a   b", "a|  | b");
    expect(CB_PRE_SMOLLM, "\u0663\u2167\u00bd", "\u0663|\u2167|\u00bd");
    expect(CB_PRE_SMOLLM, "it's 3.14", "it|'s| |3|.|1|4");
    expect(CB_PRE_SMOLLM, "  ", "  ");
}

Test(pretokenize, llama3_cuts_digits_by_threes)
{
    expect(CB_PRE_LLAMA3, "1234567", "123|456|7");
    expect(CB_PRE_LLAMA3, "a 12", "a| |12");
    expect(CB_PRE_LLAMA3, "it'Sx we'LLx", "it|'S|x| we|'LL|x");
    expect(CB_PRE_LLAMA3, "it'\u017fx", "it|'\u017f|x"); /* a long s is an s */
    expect(CB_PRE_LLAMA3, "(hello) _x", "(hello|)| _|x");
    expect(CB_PRE_LLAMA3, "a!\n\nb", "a|!\n\n|b");
    expect(CB_PRE_LLAMA3, "a \n \n  b", "a| \n \n| | b");
    expect(CB_PRE_LLAMA3, "a\r\n", "a|\r\n");
    expect(CB_PRE_LLAMA3, "\tif", "\tif");
}

Test(pretokenize, qwen2_cuts_digits_one_by_one)
{
    expect(CB_PRE_QWEN2, "1234 a", "1|2|3|4| a");
    expect(CB_PRE_QWEN2, "a 12", "a| |1|2");
    expect(CB_PRE_QWEN2, "x='y'\n", "x|='|y|'\n");
    expect(CB_PRE_QWEN2, "I'VE  \n", "I|'VE|  \n");
}

/* What would be quadratic, deep or beyond a limit in a careless pattern or matcher. */
Test(pretokenize, takes_sixteen_megabytes_of_one_character)
{
    static const char characters[] = "a1 \n!'";
    size_t n = 16u << 20;
    uint8_t *text = malloc(n);
    for (const char *c = characters; *c; c++) {
        memset(text, *c, n);
        text[n - 1] = 'x';
        for (int pre = CB_PRE_GPT2; pre <= CB_PRE_QWEN2; pre++) {
            struct cb_splitter *splitter;
            struct cb_splitter_scan *scan;
            if (*c == '1' && pre != CB_PRE_GPT2)
                continue; /* short words, many millions of them */
            cr_assert_eq(cb_splitter_new(&splitter, (uint32_t)pre), 0);
            cr_assert_eq(cb_splitter_scan_new(&scan, splitter), 0);
            size_t n_words = 0;
            for (size_t at = 0, end; at < n; at = end) {
                cr_assert_eq(cb_splitter_next(splitter, scan, text, n, at, &end), 0);
                n_words++;
            }
            cr_assert_leq(n_words, 3, "%zu words", n_words);
            cb_splitter_scan_free(scan);
            cb_splitter_free(splitter);
        }
    }
    free(text);
}

Test(pretokenize, of_an_unknown_kind_is_refused)
{
    struct cb_splitter *splitter;
    cr_assert_eq(cb_splitter_new(&splitter, 0), -ENOTSUP);
    cr_assert_eq(cb_splitter_new(&splitter, 99), -ENOTSUP);
}
