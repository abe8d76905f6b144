/* cb_shm.7 is all that the author of another client has: its rows are those of the tables, its offsets
 * those of the structures. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shm/control.h"
#include "shm/stats_table.h"
#include "shm/status.h"
#include "shm/vocab.h"

/* The page, without the backslashes before minus signs; the caller's to free. */
static char *page(void)
{
    FILE *f = fopen("shm/cb_shm.7", "re");
    char *text = calloc(1, 1 << 18);
    cr_assert(f && text, "no manual");
    size_t n = fread(text, 1, (1 << 18) - 1, f), to = 0;
    fclose(f);
    for (size_t i = 0; i < n; i++)
        if (text[i] != '\\' || text[i + 1] != '-')
            text[to++] = text[i];
    text[to] = 0;
    return text;
}

/* What follows this head of an item; fails if there is none. */
static const char *item(const char *part, const char *head)
{
    char line[160];
    snprintf(line, sizeof line, "\n.It %s\n", head);
    const char *at = strstr(part, line);
    cr_expect(at, "no item \"%s\"", head);
    return at ? at + strlen(line) : "";
}

/* From a line on. */
static const char *part_of(const char *text, const char *line)
{
    const char *part = strstr(text, line);
    cr_assert(part, "no \"%s\"", line);
    return part;
}

static void expect_text(const char *got, const char *text, const char *head)
{
    cr_expect(strncmp(got, text, strlen(text)) == 0, "%s: \"%.*s\" is not \"%s\"", head,
              (int)strcspn(got, "\n"), got, text);
}

Test(manual, has_every_status_limit_and_parameter)
{
    char *text = page(), head[80];
    const char *statuses = part_of(text, ".Sh STATUSES");
    const char *limits = part_of(statuses, "The limits of CB_QUOTA");
    const char *parameters = part_of(limits, "The parameters of CB_BAD_PARAMETER");
#define X(name, number, words)                                                     \
    snprintf(head, sizeof head, "%d %s", number, #name);                           \
    if (strpbrk(words, "%") && (number == CB_QUOTA || number == CB_BAD_PARAMETER)) \
        item(statuses, head);                                                      \
    else                                                                           \
        expect_text(item(statuses, head), words, head);
    CB_STATUS_TABLE(X)
#undef X
#define X(name, number, words)                 \
    snprintf(head, sizeof head, "%d", number); \
    expect_text(item(limits, head), words, #name);
    CB_LIMIT_TABLE(X)
#undef X
#define X(name, number, words)                 \
    snprintf(head, sizeof head, "%d", number); \
    expect_text(item(parameters, head), words, #name);
    CB_PARAMETER_TABLE(X)
#undef X
    free(text);
}

Test(manual, has_every_counter)
{
    char *text = page();
    const char *status = part_of(text, ".Sh STATUS PAGE");
#define X(name, ...) item(status, #name);
    CB_STATS_TABLE(X)
#undef X
    free(text);
}

struct place {
    size_t off;
    const char *name; /* as the row has it, at its beginning or behind others */
};

/* Each has a row in the part, with its offset in front and its name in it. */
static void expect_rows(const char *text, const char *from, const char *to,
                        const struct place *places, size_t n)
{
    const char *part = part_of(text, from), *end = part_of(part, to);
    for (size_t i = 0; i < n; i++) {
        char head[32];
        snprintf(head, sizeof head, "\n.It %zu Ta ", places[i].off);
        const char *row = strstr(part, head);
        cr_expect(row && row < end, "%s: no row of %zu, %s", from, places[i].off, places[i].name);
        if (!row)
            continue;
        const char *name = strstr(row + 1, places[i].name);
        cr_expect(name && name < strchr(row + 1, '\n'), "%s: %zu is not %s", from, places[i].off,
                  places[i].name);
    }
}
#define ROWS(text, from, to, ...)                                    \
    expect_rows(text, from, to, (const struct place[]){__VA_ARGS__}, \
                sizeof(const struct place[]){__VA_ARGS__} / sizeof(struct place))
#define OF(type, field)                      \
    {                                        \
        offsetof(struct type, field), #field \
    }

Test(manual, has_every_word_where_it_is)
{
    char *text = page();
    const char *entry = part_of(text, "A request entry has"),
               *slot = part_of(text, "A slot record");
    ROWS(text, ".Sh UP", "A request entry has", OF(cb_up_hot, req_sent), OF(cb_up_hot, res_taken),
         OF(cb_up_hot, parked), OF(cb_up_hot, pause), OF(cb_up_hot, name),
         OF(cb_up_hot, heartbeat));
    ROWS(entry, "A request entry has", "With n_children", OF(cb_request_entry, op),
         OF(cb_request_entry, flags), OF(cb_request_entry, slot), OF(cb_request_entry, gen),
         OF(cb_request_entry, n_children), OF(cb_request_entry, n_prompt),
         OF(cb_request_entry, prompt_off), OF(cb_request_entry, opt_off),
         OF(cb_request_entry, opt_len), OF(cb_request_entry, resume_from),
         OF(cb_request_entry, temperature), OF(cb_request_entry, top_p),
         OF(cb_request_entry, top_k), OF(cb_request_entry, max_new_tokens),
         OF(cb_request_entry, seed), OF(cb_request_entry, user), OF(cb_request_entry, deadline_ns),
         OF(cb_request_entry, planes), OF(cb_request_entry, priority),
         OF(cb_request_entry, child_idx));
    ROWS(text, ".Sh DOWN", "A slot record", OF(cb_down_fixed, magic), OF(cb_down_fixed, format),
         OF(cb_down_fixed, boot_id), OF(cb_down_fixed, geometry),
         {CB_PAGE + offsetof(struct cb_down_hot, req_taken), "req_taken"},
         {CB_PAGE + offsetof(struct cb_down_hot, res_sent), "res_sent"},
         {CB_PAGE + offsetof(struct cb_down_hot, bell), "bell"},
         {CB_PAGE + offsetof(struct cb_down_hot, doze), "doze"},
         {CB_PAGE + offsetof(struct cb_down_hot, closed), "closed"},
         {CB_PAGE + offsetof(struct cb_down_hot, notice), "notice"},
         {CB_PAGE + offsetof(struct cb_down_hot, pause_seen), "pause_seen"});
    ROWS(slot, "A slot record", "A run is", OF(cb_slot, ctl), OF(cb_slot, emitted),
         OF(cb_slot, finish), OF(cb_slot, error), OF(cb_slot, stop_idx), OF(cb_slot, text_bytes),
         OF(cb_slot, n_prompt), OF(cb_slot, out_cap), OF(cb_slot, out_off), OF(cb_slot, planes),
         OF(cb_slot, weight_epoch), OF(cb_slot, seed), OF(cb_slot, n_prefix_hit),
         OF(cb_slot, queued_ns), OF(cb_slot, first_token_ns), OF(cb_slot, total_ns),
         OF(cb_slot, times_off), OF(cb_slot, logprobs_off), OF(cb_slot, topk_off),
         OF(cb_slot, epochs_off), OF(cb_slot, prompt_off));
    ROWS(text, ".Sh VOCAB", "The parts:", OF(cb_vocab_header, magic), OF(cb_vocab_header, version),
         OF(cb_vocab_header, n_tokens), OF(cb_vocab_header, pre), OF(cb_vocab_header, flags),
         OF(cb_vocab_header, bos), {offsetof(struct cb_vocab_header, parts), "of each part"},
         {offsetof(struct cb_vocab_header, byte_ids), "of each byte"});
    free(text);
}
