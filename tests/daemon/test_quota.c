#include <criterion/criterion.h>
#include <errno.h>
#include <string.h>

#include "daemon/quota.h"

#define SECOND_NS 1000000000ull

struct scene {
    struct virtual_clock time;
    struct clock clock;
    struct quotas *quotas;
};

static void begin(struct scene *s, uint32_t n)
{
    virtual_clock_init(&s->time, &s->clock);
    cr_assert_eq(quotas_new(&s->quotas, n, &s->clock), 0);
}

static struct quota *connected(struct scene *s, uid_t uid)
{
    struct quota *q = quotas_of(s->quotas, uid);
    cr_assert_not_null(q);
    q->use.n_connections++;
    return q;
}

static void disconnected(struct scene *s, struct quota *q)
{
    q->use.n_connections--;
    quotas_settle(s->quotas, q);
}

static int n_used(const struct scene *s)
{
    const struct list *l;
    int n = 0;
    for (l = s->quotas->used.next; l != &s->quotas->used; l = l->next)
        n++;
    return n;
}

Test(quota, a_uid_has_one_entry_until_nothing_is_used)
{
    struct scene s;
    begin(&s, 2);
    struct quota *a = connected(&s, 7), *b = connected(&s, 8);
    cr_expect_neq(a, b);
    cr_expect_eq(quotas_of(s.quotas, 7), a);
    cr_expect_null(quotas_of(s.quotas, 9), "both are in use");
    a->use.n_requests = 1;
    disconnected(&s, a);
    cr_expect_eq(n_used(&s), 2, "a request runs");
    a->use.n_requests = 0;
    a->use.bytes = 1;
    quotas_settle(s.quotas, a);
    cr_expect_eq(n_used(&s), 2, "memory is held");
    a->use.bytes = 0;
    a->deficit = -5;
    a->n_commands = 3;
    quotas_settle(s.quotas, a);
    cr_expect_eq(n_used(&s), 1);
    struct quota *c = connected(&s, 9);
    cr_expect_eq(c->uid, 9);
    cr_expect_eq(c->deficit, 0, "nothing of the one before is left");
    cr_expect_eq(c->n_commands, 0);
    cr_expect(list_is_empty(&c->live));
    cr_expect_null(quotas_free(s.quotas));
    cr_expect_null(quotas_free(NULL));
}

Test(quota, each_broken_lane_holds_its_uid_off_for_longer)
{
    struct scene s;
    begin(&s, 2);
    struct quota *q = connected(&s, 7);
    cr_expect_not(quotas_holds_off(s.quotas, q));
    for (uint64_t n = 1; n <= 40; n++) {
        uint64_t off_ns = (n < 30 ? n : 30) * SECOND_NS;
        quotas_hold_off(s.quotas, q);
        s.time.now_ns += off_ns - 1;
        cr_expect(quotas_holds_off(s.quotas, q), "after %d", (int)n);
        s.time.now_ns++;
        cr_expect_not(quotas_holds_off(s.quotas, q), "after %d", (int)n);
    }
    quotas_free(s.quotas);
}

/* Or a uid would be held off no longer than it takes to connect again. */
Test(quota, who_is_held_off_is_remembered_without_a_connection)
{
    struct scene s;
    begin(&s, 2);
    struct quota *q = connected(&s, 7);
    quotas_hold_off(s.quotas, q);
    disconnected(&s, q);
    cr_expect_eq(n_used(&s), 1);
    cr_expect(quotas_holds_off(s.quotas, connected(&s, 7)));
    s.time.now_ns += SECOND_NS;
    disconnected(&s, q);
    cr_expect_eq(n_used(&s), 0);
    q = connected(&s, 7);
    cr_expect_eq(q->n_broken, 0, "its time is served");
    quotas_free(s.quotas);
}

Test(quota, who_is_held_off_gives_way_in_a_full_table)
{
    struct scene s;
    begin(&s, 2);
    connected(&s, 7);
    struct quota *q = connected(&s, 8);
    quotas_hold_off(s.quotas, q);
    disconnected(&s, q);
    struct quota *other = connected(&s, 9);
    cr_expect_eq(other, q);
    cr_expect_not(quotas_holds_off(s.quotas, other));
    cr_expect_null(quotas_of(s.quotas, 8));
    quotas_free(s.quotas);
}

Test(quota, check_tells_each_miscount)
{
    static const struct {
        struct quota_use counted;
        const char *why;
    } cases[] = {
        {{.n_connections = 1}, "a uid's connections are miscounted"},
        {{.n_half_open = 1}, "a uid's half-open connections are miscounted"},
        {{.n_admins = 1}, "a uid's commanding connections are miscounted"},
        {{.n_lanes = 1}, "a uid's lanes are miscounted"},
        {{.n_requests = 1}, "a uid's requests are miscounted"},
        {{.bytes = 1}, "a uid's bytes are miscounted"},
        {{.waiting_tokens = 1}, "a uid's waiting tokens are miscounted"},
    };
    struct quota q = {0};
    const char *why;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        q.use = (struct quota_use){0};
        cr_expect_eq(quota_check(&q, &cases[i].counted, &why), -EUCLEAN);
        cr_expect_str_eq(why, cases[i].why);
        q.use = cases[i].counted;
        cr_expect_eq(quota_check(&q, &cases[i].counted, &why), 0);
    }
}
