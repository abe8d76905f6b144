/* Records of any bytes on connections to the simulated daemon, one of them root's, whose commands are
 * of those that don't end the daemon. The first byte of each step says
 * what is done: connect, send a record (with a good head, or none), let the daemon turn, hang up.
 * An honest lane beside it must stay open, all audits must hold, and nothing may be left in the
 * end.
 *
 * Fuzz programs link none of the tests' helpers, so those are included whole. */
#include <inttypes.h>
#include <stdlib.h>
#include <xxhash.h>

#include "tests/util/sim.c"
#include "tests/util/sim_answers.c"
#include "tests/util/sim_client.c"
#include "tests/util/sim_operator.c"
#include "tests/util/sim_oracle.c"
#include "tests/util/sim_requests.c"

#define PEERS 3

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* What is said of a file of FILE_BYTES zeros, which is no weights. */
enum { FILE_BYTES = 40 };

static void print_hash(char text[33])
{
    static const char zeros[FILE_BYTES];
    XXH128_hash_t hash = XXH3_128bits(zeros, sizeof zeros);
    snprintf(text, 33, "%016" PRIx64 "%016" PRIx64, (uint64_t)hash.high64, (uint64_t)hash.low64);
}

/* Root's commands: a known one, with any argument, or one that is known too. */
static void make_harmless(unsigned char *record, uint8_t which)
{
    static const char *const harmless[] = {"pause",  "resume",        "why",         "requests",
                                           "cancel", "stage-weights", "load-weights"};
    const char *command = harmless[which % 7];
    struct cb_admin *admin = (void *)record;
    char argument[33] = "all";
    if (admin->head.type != CB_RECORD_ADMIN)
        return;
    memset(admin->command, 0, sizeof admin->command);
    strcpy(admin->command, command);
    admin->command_bytes = (uint32_t)strlen(admin->command);
    if (!(which & 0x40))
        return;
    if (strcmp(command, "pause") == 0)
        strcpy(argument, "hold");
    else if (strcmp(command, "stage-weights") == 0)
        snprintf(argument, sizeof argument, "%d", FILE_BYTES);
    else if (strcmp(command, "load-weights") == 0)
        print_hash(argument);
    memset(admin->argument, 0, sizeof admin->argument);
    strcpy(admin->argument, argument);
    admin->argument_bytes = (uint32_t)strlen(admin->argument);
}

static void step(struct sim *s, int socks[PEERS], int deaths[PEERS], const uint8_t *data, size_t n)
{
    alignas(8) unsigned char record[CB_RECORD_BYTES + 16] = {0};
    uint32_t which = data[0] % PEERS;
    int *sock = &socks[which];
    if (*sock < 0) {
        sim_connect(s, which ? 1000 + which : 0, sock, &deaths[which]);
    } else if (data[0] & 0x80) {
        close(*sock);
        close(deaths[which]);
        *sock = -1;
    } else {
        struct cb_record_head head = {.magic = CB_RECORD_MAGIC, .type = data[0] >> 3 & 15};
        size_t skip = data[0] & 4 ? 0 : sizeof head;
        size_t room = sizeof record - 16 - skip;
        memcpy(record, &head, skip);
        memcpy(record + skip, data + 1, n - 1 < room ? n - 1 : room);
        if (which == 0)
            make_harmless(record, n > 1 ? data[n - 1] : 0);
        (void)send(*sock, record, n > 250 ? n : CB_RECORD_BYTES, MSG_DONTWAIT | MSG_NOSIGNAL);
    }
    daemon_turn(s->daemon);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct sim *s;
    static struct sim_report report;
    int socks[PEERS] = {-1, -1, -1}, deaths[PEERS];
    if (!s)
        s = sim_new(1, false, &report);
    if (!s)
        abort();
    while (size > 0) {
        size_t n = size > 1 && data[1] < size - 1 ? 1u + data[1] : size;
        step(s, socks, deaths, data, n);
        if (s->daemon->state != DAEMON_SERVING) /* who has authority is harmless */
            abort();
        data += n;
        size -= n;
    }
    for (int i = 0; i < PEERS; i++)
        if (socks[i] >= 0) {
            close(socks[i]);
            close(deaths[i]);
        }
    for (int i = 0; i < 8; i++)
        daemon_turn(s->daemon);
    if (s->daemon->clients->n_holders)
        abort();
    pauses_end_all(&s->daemon->pauses);
    s->time.now_ns += 60000000000ull; /* whoever is held off may come back */
    sim_audit(s);
    check_empty(s);
    if (report.error[0])
        abort();
    return 0;
}
