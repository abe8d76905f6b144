/* Counters of users on their own: weights as text, lifts, and what is forgotten. */
#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "daemon/base/refuse.h"
#include "daemon/sched/shares.h"

Test(shares, weights_are_read_and_refused_in_words)
{
    static const struct {
        const char *text, *part; /* NULL: it is good */
        uint32_t n, uid, weight; /* of the last */
    } cases[] = {
        {"", NULL, 0, 0, 0},
        {"1000=2", NULL, 1, 1000, 2},
        {"1000=2,4294967295=1000,", NULL, 2, 4294967295, 1000},
        {"1000", "from '1000' on; give UID=WEIGHT", 0, 0, 0},
        {"1000=", "give UID=WEIGHT", 0, 0, 0},
        {"=2", "give UID=WEIGHT", 0, 0, 0},
        {"1=2,,", "from ',' on", 0, 0, 0},
        {"1=2;3=4", "give UID=WEIGHT", 0, 0, 0},
        {"1=0", "weights 1 to 1000", 0, 0, 0},
        {"1=1001", "weights 1 to 1000", 0, 0, 0},
        {"4294967296=1", "give UID=WEIGHT", 0, 0, 0},
        {"1=99999999999999999999", "weights 1 to 1000", 0, 0, 0},
        {"-1=1", "give UID=WEIGHT", 0, 0, 0},
        {"1=2,7=1,1=3", "names user 1 twice", 0, 0, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char message[REFUSE_MESSAGE_MAX] = "";
        struct share_weights w = {.n = 77};
        int r = share_weights_parse(cases[i].text, &w, message);
        cr_expect_eq(r, cases[i].part ? -EINVAL : 0, "'%s'", cases[i].text);
        if (cases[i].part) {
            cr_expect(strstr(message, cases[i].part), "'%s': %s", cases[i].text, message);
            cr_expect_eq(w.n, 77, "'%s' changed something", cases[i].text);
        } else {
            cr_expect_eq(w.n, cases[i].n);
            cr_expect(w.n == 0 || (w.of[w.n - 1].uid == cases[i].uid &&
                                   w.of[w.n - 1].weight == cases[i].weight));
        }
    }
}

Test(shares, as_many_weights_as_fit_and_no_more)
{
    char text[16 * (SHARE_WEIGHTS_MAX + 1)] = "", message[REFUSE_MESSAGE_MAX];
    struct share_weights w;
    for (int i = 0; i < SHARE_WEIGHTS_MAX; i++)
        sprintf(text + strlen(text), "%d=1,", i);
    cr_expect_eq(share_weights_parse(text, &w, message), 0);
    strcat(text, "999=1");
    cr_expect_eq(share_weights_parse(text, &w, message), -EINVAL);
    cr_expect(strstr(message, "more than 64 users"), "%s", message);
}

/* As the policy does: it has a request, which waits. */
static struct share *enter(struct shares *s, uint32_t uid)
{
    struct share *share = shares_enter(s, uid);
    share->queue.n++;
    return share;
}

static void leave(struct shares *s, struct share *share)
{
    if (--share->queue.n == 0)
        shares_note_empty(s, share);
    shares_leave(s, share);
}

Test(shares, who_comes_back_is_lifted_to_the_least_of_those_who_wait_and_goes_first)
{
    struct shares *s;
    cr_assert_eq(shares_new(&s, 8), 0);
    struct share *a = enter(s, 1), *b = enter(s, 2);
    share_charge(a, 100, 0);
    share_charge(b, 10, 20);
    cr_expect_eq(b->counter, 50 * SHARE_UNIT, "a generated token counts twice");
    struct share *c = enter(s, 3);
    cr_expect_eq(c->counter, b->counter);
    cr_expect_eq(shares_rank(s), 3);
    cr_expect(c->rank == 0 && b->rank == 1 && a->rank == 2, "on a par the newcomer goes first");
    share_charge(c, 1, 0);
    shares_rank(s);
    cr_expect(b->rank == 0 && c->rank == 1);
    leave(s, a);
    a = enter(s, 1);
    cr_expect_eq(a->counter, 100 * SHARE_UNIT, "what it owed it still owes");
    leave(s, a);
    leave(s, b);
    leave(s, c);
    cr_expect_eq(shares_n(s), 0);
    a = enter(s, 4);
    cr_expect_eq(a->counter, 51 * SHARE_UNIT, "the last that waited");
    shares_free(s);
}

/* More users than places for idle ones: those with the least to lose are forgotten, places return. */
Test(shares, any_number_of_users_may_come_and_go)
{
    struct shares *s;
    cr_assert_eq(shares_new(&s, 2), 0);
    struct share *debtor = enter(s, 7);
    share_charge(debtor, 1000, 0);
    leave(s, debtor);
    uint64_t floor = debtor->counter;
    for (uint32_t uid = 100; uid < 1000; uid++) {
        struct share *a = enter(s, uid), *b = enter(s, uid + 1000);
        cr_assert_geq(a->counter, floor, "a lift never sinks");
        floor = a->counter;
        share_charge(a, uid % 5, 0);
        leave(s, b);
        leave(s, a);
    }
    cr_expect_eq(shares_n(s), 0);
    shares_free(s);
}
