/* base/list.h - a doubly linked list inside the things it links.
 *
 * A `struct list` is either a head or a link in somebody's struct; a link in no list points to
 * itself, so removing twice is harmless. The list owns nothing and never allocates. */
#ifndef CB_DAEMON_BASE_LIST_H
#define CB_DAEMON_BASE_LIST_H

#include <stdbool.h>
#include <stddef.h>

struct list {
    struct list *prev, *next;
};

/* The struct of that type whose `member` is *link. */
#define list_entry(link, type, member) ((type *)(void *)((char *)(link)-offsetof(type, member)))

/* Visits each link of head; the one visited may be removed meanwhile (`after` is the loop's
 * own). */
#define list_for_each(link, after, head)                                  \
    for ((link) = (head)->next, (after) = (link)->next; (link) != (head); \
         (link) = (after), (after) = (link)->next)

static inline void list_init(struct list *l)
{
    l->prev = l->next = l;
}

static inline bool list_is_empty(const struct list *head)
{
    return head->next == head;
}

static inline void list_append(struct list *head, struct list *link)
{
    link->prev = head->prev;
    link->next = head;
    head->prev->next = link;
    head->prev = link;
}

static inline void list_prepend(struct list *head, struct list *link)
{
    list_append(head->next, link);
}

static inline void list_remove(struct list *link)
{
    link->prev->next = link->next;
    link->next->prev = link->prev;
    list_init(link);
}

#endif
