/* kernels/cpu/isa.h - which level the processor and the system allow, and which is best. */
#ifndef CB_KERNELS_CPU_ISA_H
#define CB_KERNELS_CPU_ISA_H

#include "kernels/cpu/level.h"

/* The level named, or for NULL and "auto" the best one, if bf16 products are allowed or not. NULL:
 * not known, or not on this machine; then *why is a static sentence that lists what this machine
 * has. */
const struct level *isa_level(const char *name, bool bf16, const char **why);

/* From how many tokens on a level's products are best made in bf16; 0: never, or not on this
 * machine; then *why is a static sentence. */
uint32_t isa_bf16_tokens(const struct level *level, const char **why);

/* Level i of those this machine has, the emulated ones among them; NULL from the last on. */
const struct level *isa_level_at(uint32_t i);

#endif
