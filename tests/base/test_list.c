#include <criterion/criterion.h>

#include "daemon/base/clock.h"
#include "daemon/base/list.h"

struct item {
    int n;
    struct list link;
};

Test(list, keeps_order_and_takes_removal_during_a_walk)
{
    struct item items[5];
    struct list head, *link, *after;
    int seen = 0, n_left = 0;
    list_init(&head);
    cr_assert(list_is_empty(&head));
    for (int i = 1; i < 5; i++) {
        items[i].n = i;
        list_append(&head, &items[i].link);
    }
    items[0].n = 0;
    list_prepend(&head, &items[0].link);
    list_for_each (link, after, &head) {
        struct item *item = list_entry(link, struct item, link);
        cr_assert_eq(item->n, seen++);
        if (item->n % 2 == 0)
            list_remove(link);
    }
    cr_assert_eq(seen, 5);
    list_for_each (link, after, &head) {
        cr_assert_eq(list_entry(link, struct item, link)->n, 2 * n_left + 1);
        n_left++;
    }
    cr_assert_eq(n_left, 2);
}

Test(list, removing_twice_is_harmless)
{
    struct list head, a, b;
    list_init(&head);
    list_append(&head, &a);
    list_append(&head, &b);
    list_remove(&a);
    list_remove(&a);
    cr_assert(list_is_empty(&a));
    cr_assert_eq(head.next, &b);
    cr_assert_eq(head.prev, &b);
}

Test(clock, monotonic_never_returns_0_and_never_goes_back)
{
    uint64_t before = clock_now(&clock_monotonic);
    cr_assert_neq(before, 0);
    for (int i = 0; i < 1000; i++) {
        uint64_t now = clock_now(&clock_monotonic);
        cr_assert_geq(now, before);
        before = now;
    }
}

Test(clock, virtual_stands_until_moved)
{
    struct virtual_clock v;
    struct clock c;
    virtual_clock_init(&v, &c);
    uint64_t begin = clock_now(&c);
    cr_assert_neq(begin, 0);
    cr_assert_eq(clock_now(&c), begin);
    v.now_ns += 5;
    cr_assert_eq(clock_now(&c), begin + 5);
}
