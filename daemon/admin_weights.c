/* Other weights while the daemon runs: a client asks for memory, fills it, and says so. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/admin_parts.h"
#include "daemon/replies.h"
#include "shm/status.h"

#define LEAST_BYTES_MAX (UINT64_C(1) << 20)

/* How large a file may be. */
static uint64_t bytes_max(const struct daemon *d)
{
    uint64_t twice = 2 * model_info(d->config.model)->file_bytes;
    if (d->config.settings->weights_bytes_max)
        return d->config.settings->weights_bytes_max;
    return twice > LEAST_BYTES_MAX ? twice : LEAST_BYTES_MAX;
}

int admin_stage_weights(struct daemon *d, struct client *who, const char *argument,
                        struct buf *reply)
{
    char why[STAGING_WHY_MAX], *end;
    uint64_t bytes = strtoull(argument, &end, 10);
    if (*argument < '0' || *argument > '9' || *end)
        return admin_fail(reply, CB_INVALID, "give the size of the file in bytes");
    if (bytes == 0)
        return admin_fail(reply, CB_BAD_WEIGHTS, "the file is empty");
    if (bytes > bytes_max(d)) {
        snprintf(why, sizeof why,
                 "the file has %" PRIu64 " bytes, and %" PRIu64 " are taken (weights_bytes_max)",
                 bytes, bytes_max(d));
        return admin_fail(reply, CB_BAD_WEIGHTS, why);
    }
    loading_settle(d);
    int status = staging_begin(&d->loading.staging, who, bytes, why);
    if (status)
        return admin_fail(reply, status, why);
    replies_give(who, d->loading.staging.fd);
    buf_u64(reply, "bytes", bytes);
    return CB_OK;
}

/* 32 digits. */
static bool parse_hash(const char *text, uint64_t hash[2])
{
    char half[17];
    if (strlen(text) != 32 || strspn(text, "0123456789abcdef") != 32)
        return false;
    memcpy(half, text, 16);
    half[16] = 0;
    hash[0] = strtoull(half, NULL, 16);
    hash[1] = strtoull(text + 16, NULL, 16);
    return true;
}

int admin_load_weights(struct daemon *d, struct client *who, const char *argument,
                       struct buf *reply)
{
    uint64_t hash[2];
    if (!parse_hash(argument, hash))
        return admin_fail(reply, CB_INVALID, "give the file's XXH3-128 as 32 hexadecimal digits");
    return loading_begin(d, who, hash, reply);
}
