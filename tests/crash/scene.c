/* The stop string is a part of the greedy answer: who learns plays twice, first with one that is never
 * found. */
#include "tests/crash/scene.h"

#include <dirent.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

enum { N_SHORT = 12, N_PROMPT = 10, N_PROMPT_FULL = 50, CANCEL_AFTER = 3, MIDWAY = 4 };

/* One play. */
struct stage {
    struct cb_handle *h;
    const struct scene_play *play;
    struct scene *got;
    char *why;
    uint64_t ids[SCENE_STREAMS]; /* 0: not sent */
    bool is_over[SCENE_STREAMS];
    uint32_t n_over, n_streaming;
    bool is_cancelled, was_midway;
};

static bool fail(struct stage *st, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(st->why, 256, format, args);
    va_end(args);
    return false;
}

static uint64_t now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000u + (uint64_t)t.tv_nsec / 1000000u;
}

/* Six bytes or so from the middle, of whole characters. */
static struct cb_string stop_of(const struct scene *known)
{
    const struct scene_answer *a = known ? &known->answers[SCENE_GREEDY] : NULL;
    size_t from = a ? a->n_text / 2 : 0, to;
    if (!a)
        return (struct cb_string){"never found", 11};
    while (from > 0 && ((unsigned char)a->text[from] & 0xc0) == 0x80)
        from--;
    to = from + 6 < a->n_text ? from + 6 : a->n_text;
    while (to < a->n_text && ((unsigned char)a->text[to] & 0xc0) == 0x80)
        to++;
    return (struct cb_string){a->text + from, to - from};
}

static bool submit(struct stage *st, uint32_t stream, struct cb_request *r)
{
    uint64_t id, until = now_ms() + st->play->hang_ms;
    uint32_t n = r->n ? r->n : 1;
    int status;
    r->flags |= CB_IGNORE_EOS | CB_HAS_SEED | (st->play->is_resumable ? CB_RESUMABLE : 0);
    r->seed = 77 + stream;
    r->user = stream;
    while ((status = cb_submit(st->h, r, &id)) == CB_BUSY && now_ms() < until)
        nanosleep(&(struct timespec){0, 1000000}, NULL);
    if (status)
        return fail(st, "stream %u: submit: %s", stream, cb_message());
    for (uint32_t i = 0; i < n; i++)
        st->ids[stream + i] = id + i;
    return true;
}

static bool submit_all(struct stage *st)
{
    uint32_t prompt[N_PROMPT_FULL];
    struct cb_string stop;
    bool ok = true;
    for (uint32_t i = 0; i < N_PROMPT_FULL; i++)
        prompt[i] = 3 + 7 * i;
    for (uint32_t stream = 0; stream < SCENE_STREAMS && ok; stream++) {
        struct cb_request r;
        if (stream > SCENE_CHILD && stream < SCENE_STOP)
            continue; /* sent with the first */
        cb_request_init(&r);
        r.ids = prompt;
        r.n_ids = N_PROMPT;
        r.max_new_tokens = N_SHORT;
        switch (stream) {
        case SCENE_CHILD:
            r.n = 3;
            r.temperature = 1;
            break;
        case SCENE_SAMPLED:
            r.temperature = 0.8f;
            r.top_k = 50;
            break;
        case SCENE_STOP:
            stop = stop_of(st->play->known);
            r.stops = &stop;
            r.n_stops = 1;
            break;
        case SCENE_FULL:
            r.n_ids = N_PROMPT_FULL;
            r.max_new_tokens = CB_NO_LIMIT;
            break;
        default:
            break;
        }
        ok = submit(st, stream, &r);
    }
    return ok;
}

/* An event, compared at once with what is known. */
static bool take(struct stage *st, const struct cb_event *e)
{
    uint32_t stream = 0;
    struct cb_result result;
    const char *text;
    size_t bytes;
    while (stream < SCENE_STREAMS && st->ids[stream] != e->id)
        stream++;
    if (stream == SCENE_STREAMS || st->is_over[stream])
        return fail(st, "an event of nobody's");
    struct scene_answer *a = &st->got->answers[stream];
    if (e->type != CB_EVENT_TOKENS && e->type != CB_EVENT_END)
        return fail(st, "stream %u: type %u, status %d", stream, e->type, e->status);
    if (e->first != a->n || e->n_ids > SCENE_TOKENS - a->n)
        return fail(st, "stream %u: %zu tokens from %u, behind %u", stream, e->n_ids, e->first,
                    a->n);
    st->n_streaming += a->n == 0 && e->n_ids > 0;
    for (size_t i = 0; i < e->n_ids; i++)
        a->ids[a->n++] = e->ids[i];
    while (cb_text(st->h, e->id, &text, &bytes) > 0) {
        if (bytes > sizeof a->text - a->n_text)
            return fail(st, "stream %u: too much text", stream);
        memcpy(a->text + a->n_text, text, bytes);
        a->n_text += (uint32_t)bytes;
    }
    if (stream == SCENE_CANCELLED && a->n >= CANCEL_AFTER && !st->is_cancelled) {
        st->is_cancelled = true;
        cb_cancel(st->h, e->id);
    }
    if (e->type == CB_EVENT_TOKENS)
        return true;
    if (e->end == CB_END_ERROR)
        return fail(st, "stream %u: status %d after %u", stream, e->status, a->n);
    cb_result(st->h, e->id, &result);
    a->end = e->end;
    a->stop_idx = result.stop_idx;
    a->text_bytes = result.text_bytes;
    st->is_over[stream] = true;
    st->n_over++;
    cb_release(st->h, e->id);
    return true;
}

static bool compare(struct stage *st, const struct scene *known)
{
    for (uint32_t i = 0; i < SCENE_STREAMS; i++) {
        const struct scene_answer *a = &known->answers[i], *b = &st->got->answers[i];
        if (i == SCENE_CANCELLED && b->end == CB_END_CANCELLED) {
            const struct scene_answer *whole = &known->answers[SCENE_GREEDY];
            if (b->n > whole->n || memcmp(b->ids, whole->ids, b->n * sizeof *b->ids) != 0)
                return fail(st, "what was cancelled had other tokens");
            continue;
        }
        if (i == SCENE_CANCELLED)
            a = &known->answers[SCENE_GREEDY]; /* it came to its end before */
        if (memcmp(a, b, sizeof *a) != 0)
            return fail(st, "stream %u: %u tokens and %u of text, end %u; alone %u, %u, %u", i,
                        b->n, b->n_text, b->end, a->n, a->n_text, a->end);
    }
    return true;
}

static bool play_to(struct scene *got, struct cb_handle *h, const struct scene_play *play,
                    char why[256])
{
    struct stage st = {.h = h, .play = play, .got = got, .why = why};
    uint64_t until = now_ms() + play->hang_ms;
    memset(got, 0, sizeof *got);
    if (!submit_all(&st))
        return false;
    while (st.n_over < SCENE_STREAMS) {
        struct cb_event e;
        int r = cb_wait(h, 0, &e, 1000);
        if (r < 0 && r != CB_TIMEOUT)
            return fail(&st, "wait: %d: %s", r, cb_message());
        if (r == 1 && !take(&st, &e))
            return false;
        if (play->midway && !st.was_midway && st.n_streaming >= MIDWAY) {
            st.was_midway = true;
            play->midway(play->arg);
        }
        if (now_ms() > until)
            return fail(&st, "no end: %u of %u are over", st.n_over, SCENE_STREAMS);
    }
    return !play->known || compare(&st, play->known);
}

bool scene_play(struct cb_handle *h, const struct scene_play *play, char why[256])
{
    struct scene got;
    return play_to(&got, h, play, why);
}

bool scene_learn(struct scene *sc, struct cb_handle *h, char why[256])
{
    struct scene first;
    struct scene_play play = {.hang_ms = 10000};
    struct stage st = {.why = why};
    if (!play_to(&first, h, &play, why))
        return false;
    play.known = &first;
    if (play_to(sc, h, &play, why))
        return fail(&st, "no stop string ended it");
    if (sc->answers[SCENE_STOP].end != CB_END_STOP)
        return false;
    return sc->answers[SCENE_FULL].n == 14 || fail(&st, "the context is not full");
}

void scene_held(struct scene_held *held)
{
    FILE *f = fopen("/proc/self/maps", "re");
    char line[512];
    unsigned long from, to;
    *held = (struct scene_held){0};
    while (f && fgets(line, sizeof line, f))
        if ((strstr(line, "/memfd:") || strstr(line, "/dev/shm/")) &&
            sscanf(line, "%lx-%lx", &from, &to) == 2)
            held->mapped_bytes += to - from;
    if (f)
        fclose(f);
    DIR *d = opendir("/proc/self/fd");
    while (d && readdir(d))
        held->n_fds++;
    if (d)
        closedir(d);
}
