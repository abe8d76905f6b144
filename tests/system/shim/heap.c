/* Preloaded into cbd: counts calls of the heap in a file that the test maps ($HEAP_SHIM_FILE), and
 * keeps who made the last one, as an address for addr2line. */
#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

extern void *__libc_malloc(size_t bytes);
extern void *__libc_calloc(size_t n, size_t bytes);
extern void *__libc_realloc(void *p, size_t bytes);
extern void *__libc_memalign(size_t alignment, size_t bytes);
extern void __libc_free(void *p);

struct page {
    _Atomic uint64_t n_calls;
    _Atomic uintptr_t last_caller;
};

static struct page before; /* until the file is mapped */
static struct page *page = &before;

__attribute__((constructor)) static void shim_map(void)
{
    const char *path = getenv("HEAP_SHIM_FILE");
    int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    void *map =
        fd < 0 ? MAP_FAILED : mmap(NULL, sizeof *page, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (map != MAP_FAILED)
        page = map;
    if (fd >= 0)
        close(fd);
}

static void count(void *caller)
{
    atomic_fetch_add_explicit(&page->n_calls, 1, memory_order_relaxed);
    atomic_store_explicit(&page->last_caller, (uintptr_t)caller, memory_order_relaxed);
}

#define CALLER __builtin_return_address(0)

void *malloc(size_t bytes)
{
    count(CALLER);
    return __libc_malloc(bytes);
}

void *calloc(size_t n, size_t bytes)
{
    count(CALLER);
    return __libc_calloc(n, bytes);
}

void *realloc(void *p, size_t bytes)
{
    count(CALLER);
    return __libc_realloc(p, bytes);
}

void free(void *p)
{
    if (p)
        count(CALLER);
    __libc_free(p);
}

void *memalign(size_t alignment, size_t bytes)
{
    count(CALLER);
    return __libc_memalign(alignment, bytes);
}

void *aligned_alloc(size_t alignment, size_t bytes)
{
    count(CALLER);
    return __libc_memalign(alignment, bytes);
}

int posix_memalign(void **pp, size_t alignment, size_t bytes)
{
    count(CALLER);
    *pp = __libc_memalign(alignment, bytes);
    return *pp ? 0 : ENOMEM;
}
