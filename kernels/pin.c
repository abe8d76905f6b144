#include "kernels/pin.h"

#include <errno.h>
#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>

int pin_memory(void *data, size_t bytes)
{
    uintptr_t unit = (uintptr_t)sysconf(_SC_PAGESIZE), at = (uintptr_t)data;
    uintptr_t begin = at / unit * unit, end = (at + bytes + unit - 1) / unit * unit;

    return bytes == 0 || mlock2((void *)begin, end - begin, MLOCK_ONFAULT) == 0 ? 0 : -errno;
}
