/* tools/view.h - two looks at a daemon as lines of text: what `cbctl top` shows.
 *
 * Pure: no terminal, no clock. Lines are printable ASCII, whatever the daemon's strings hold, so a
 * byte is a column and nothing in them steers a terminal. */
#ifndef CB_TOOLS_VIEW_H
#define CB_TOOLS_VIEW_H

#include "tools/watch.h"

enum { VIEW_LINES_MAX = 24, VIEW_COLUMNS_MAX = 160 };

struct view {
    unsigned n_rows;
    char rows[VIEW_LINES_MAX][VIEW_COLUMNS_MAX];
};

/* Rates and recent latencies are of the time between the looks; without an earlier one (NULL), or
 * with one of another boot, of all the time since the daemon's start. */
void view_make(struct view *v, const struct watch *now, const struct watch *earlier);

#endif
