/* tools/show.h - an answer in JSON, on standard output. */
#ifndef CB_TOOLS_SHOW_H
#define CB_TOOLS_SHOW_H

#include <jansson.h>
#include <stdbool.h>

/* As a line of JSON; or for a terminal: an object as a line for each key, a list of objects as a
 * table. Control characters are shown as '?'. */
void show(const json_t *o, bool as_json);

#endif
