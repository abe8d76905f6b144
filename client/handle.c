/* client/handle.c - a handle's beginning and end.
 *
 * The segments are not inherited by fork(). A child must not even try, so the handle owns a page
 * which the kernel wipes in children: one load tells, without a system call. */
#include "client/internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

#include "client/reconnect.h"
#include "client/record.h"
#include "client/text.h"
#include "shm/doorbell.h"

static_assert((int)CB_END_EOS == CB_FINISH_EOS && (int)CB_END_STOP == CB_FINISH_STOP &&
                  (int)CB_END_LENGTH == CB_FINISH_LENGTH &&
                  (int)CB_END_CANCELLED == CB_FINISH_CANCELLED &&
                  (int)CB_END_DEADLINE == CB_FINISH_DEADLINE &&
                  (int)CB_END_ERROR == CB_FINISH_ERROR,
              "cbclient.h spells format.h out");

static int make_alive(struct cb_handle *h)
{
    long page = sysconf(_SC_PAGESIZE);
    unsigned char *p =
        mmap(NULL, (size_t)page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return cb_fail_errno("mmap", errno);
    h->alive = p;
    if (madvise(p, (size_t)page, MADV_WIPEONFORK))
        return cb_fail_errno("madvise(MADV_WIPEONFORK)", errno);
    *p = 1;
    return 0;
}

/* Checks and copies. All headers so far know one size of the structure. */
static int take_options(struct cb_options *mine, const struct cb_options *given)
{
    cb_options_init(mine);
    if (!given)
        return 0;
    if (given->size != sizeof(*mine))
        return cb_fail_at("cb_options.size; use cb_options_init", CB_INVALID, 0, 0);
    *mine = *given;
    if (mine->wait_mode > CB_WAIT_ECO)
        return cb_fail_at("cb_options.wait_mode", CB_INVALID, 0, 0);
    if (mine->kind > CB_KIND_EVENT_LOOP)
        return cb_fail_at("cb_options.kind", CB_INVALID, 0, 0);
    if (mine->n_slots > CB_SLOTS_MAX)
        return cb_fail_at("cb_options.n_slots, of which 4096 are the most", CB_INVALID, 0, 0);
    if (mine->resume > 1)
        return cb_fail_at("cb_options.resume", CB_INVALID, 0, 0);
    if (mine->named > 1)
        return cb_fail_at("cb_options.named", CB_INVALID, 0, 0);
    if (mine->wait_ms < -1)
        return cb_fail_at("cb_options.wait_ms", CB_INVALID, 0, 0);
    return 0;
}

int cb_open(struct cb_handle **handlep, const struct cb_options *given)
{
    struct cb_options options;
    struct cb_handle *h;
    int cancel_state, r;
    if (!handlep)
        return cb_fail(CB_INVALID);
    *handlep = NULL;
    r = take_options(&options, given);
    if (r)
        return r;
    h = calloc(1, sizeof(*h));
    if (!h)
        return cb_fail(CB_NO_MEMORY);
    pthread_mutex_init(&h->lock, NULL);
    pthread_mutex_init(&h->text_lock, NULL);
    h->kind = options.kind;
    h->wait_mode = options.wait_mode;

    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel_state);
    if (getrandom(&h->seed_state, sizeof(h->seed_state), 0) != (ssize_t)sizeof(h->seed_state))
        h->seed_state = cb_now_ns() ^ (uint64_t)(uintptr_t)h;
    r = make_alive(h);
    if (!r) {
        int sock = cb_find_socket(&options);
        r = sock < 0 ? sock : cb_connect_first(h, sock, &options);
    }
    if (!r && options.resume)
        r = cb_reconnect_new(h, &options);
    if (r)
        cb_close(h);
    else
        *handlep = h;
    pthread_setcancelstate(cancel_state, NULL);
    return r;
}

void cb_close(struct cb_handle *h)
{
    bool child;
    if (!h)
        return;
    /* The child of a fork has no mappings of the lane, but a copy of the descriptor and the
     * heap. */
    child = h->alive && !*h->alive;
    struct cb_link *link = h->link;
    if (!child && link && link->sock >= 0)
        cb_doorbell_send(link->sock, CB_RECORD_BYE);
    h->reconnect = cb_reconnect_free(h->reconnect);
    cb_link_free(link, child);
    for (struct cb_link *next; (link = h->older) != NULL; h->older = next) {
        next = link->older;
        cb_link_free(link, child);
    }
    if (!child)
        cb_segment_unmap(&h->vocab_segment);
    for (uint32_t i = 0; h->held && i < h->n_held; i++) {
        cb_text_free(h->held[i].text);
        cb_record_free(h->held[i].record);
    }
    cb_words_fini(h);
    free(h->held);
    free(h->model_name);
    if (h->alive)
        munmap((void *)(uintptr_t)h->alive, (size_t)sysconf(_SC_PAGESIZE));
    pthread_mutex_destroy(&h->lock);
    pthread_mutex_destroy(&h->text_lock);
    free(h);
}

int cb_info(struct cb_handle *h, struct cb_info *info)
{
    int r = cb_enter(h);
    if (r || !info)
        return cb_fail(r ? r : CB_INVALID);
    memset(info, 0, sizeof(*info));
    info->model = h->model_name;
    info->n_vocab = h->n_vocab;
    info->n_context = h->n_context;
    info->bos = h->vocab.header->bos;
    info->eos = h->vocab.header->eos;
    info->eot = h->vocab.header->eot;
    info->n_slots = h->n_held;
    info->has_chat = h->vocab.template_bytes > 0;
    pthread_mutex_lock(&h->lock);
    const struct cb_link *link = h->link;
    info->lane_id = link->lane_id;
    info->arena_bytes = link->geometry.up_arena_bytes;
    info->pool_bytes = link->geometry.down_pool_bytes;
    info->n_reconnects = h->n_reconnects;
    info->wake_missed = h->wake_missed;
    pthread_mutex_unlock(&h->lock);
    return 0;
}
