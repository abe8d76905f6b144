/* daemon/model/arch.h - what differs between model families: a row in config.c's table and a file.
 *
 * A family says which tensors it has and which operators make a step of it. */
#ifndef CB_DAEMON_MODEL_ARCH_H
#define CB_DAEMON_MODEL_ARCH_H

#include "kernels/kernels.h"

struct loader;
struct weights;
struct pass;

struct arch {
    const char *name; /* general.architecture, and the prefix of the family's keys */
    enum rope_kind rope;
    /* Asks l for embed, head, output_norm and all layers of w. 0 or a negative errno with l's
     * message; weights_fini frees what was made. */
    int (*load)(struct loader *l, struct weights *w);
    /* p->y from the step's tokens, through all layers, for the tokens that have an output; the head
     * is forward.c's. 0 or a negative errno. */
    int (*step)(const struct pass *p, const struct step *step);
};

extern const struct arch arch_llama;

#endif
