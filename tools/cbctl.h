/* tools/cbctl.h - what cbctl's commands share: a row each, and what all are handed.
 *
 * A command is one row of the table in cbctl.c and one function here: it parses its own arguments
 * (argp), talks, prints, and returns the exit status: 0 done, 1 it failed (the reason was printed),
 * 2 usage. */
#ifndef CB_TOOLS_CBCTL_H
#define CB_TOOLS_CBCTL_H

#include "tools/complain.h"

int cmd_status(const struct cbctl *ctl, int argc, char **argv);
int cmd_top(const struct cbctl *ctl, int argc, char **argv);
int cmd_metrics(const struct cbctl *ctl, int argc, char **argv);
int cmd_admin(const struct cbctl *ctl, int argc, char **argv); /* clients, requests, ... */
int cmd_weights(const struct cbctl *ctl, int argc, char **argv);
int cmd_pause(const struct cbctl *ctl, int argc, char **argv);
int cmd_upgrade(const struct cbctl *ctl, int argc, char **argv);
int cmd_run(const struct cbctl *ctl, int argc, char **argv);
int cmd_generate(const struct cbctl *ctl, int argc, char **argv);
int cmd_bench(const struct cbctl *ctl, int argc, char **argv);

#endif
