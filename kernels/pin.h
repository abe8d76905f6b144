/* kernels/pin.h - memory that the system may not swap out. */
#ifndef CB_KERNELS_PIN_H
#define CB_KERNELS_PIN_H

#include <stddef.h>

/* Keeps the pages of the machine in which these bytes lie, each from when it first has memory: none is
 * taken now, but all count at once against RLIMIT_MEMLOCK. 0 or a negative errno, and nothing is kept:
 * -ENOMEM or -EPERM: the limit is less. Unmapping undoes it. */
int pin_memory(void *data, size_t bytes);

#endif
