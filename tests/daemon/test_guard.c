/* A page that is gone: where it is guarded the access reads zeros and the range says so; elsewhere
 * it kills. */
#include <criterion/criterion.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include "daemon/guard.h"

#define BYTES 16384

/* A mapping of a file that was cut to nothing behind its back. */
static volatile char *cut_mapping(void)
{
    int fd = memfd_create("cut", MFD_CLOEXEC);
    cr_assert_geq(fd, 0);
    cr_assert_eq(ftruncate(fd, BYTES), 0);
    char *p = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    cr_assert_neq(p, MAP_FAILED);
    p[0] = 1;
    cr_assert_eq(ftruncate(fd, 0), 0);
    close(fd);
    return p;
}

Test(guard, a_missing_page_reads_as_zeros_and_breaks_its_range_alone)
{
    volatile char *p = cut_mapping(), *q = cut_mapping();
    cr_assert_eq(guard_install(), 0);
    int a = guard_add((void *)p, BYTES), b = guard_add((void *)q, BYTES);
    cr_assert_geq(a, 0);
    cr_assert_geq(b, 0);
    cr_assert_eq(p[5000], 0);
    cr_assert(guard_is_broken(a));
    cr_assert_not(guard_is_broken(b));
    p[100] = 7; /* and may be written, as STATUS is */
    cr_assert_eq(p[100], 7);
    cr_assert_eq(q[0], 0);
    cr_assert(guard_is_broken(b));
    guard_remove(a);
    guard_remove(b);
}

Test(guard, elsewhere_it_kills, .signal = SIGBUS)
{
    volatile char *p = cut_mapping(), *q = cut_mapping();
    cr_assert_eq(guard_install(), 0);
    int a = guard_add((void *)p, BYTES);
    guard_remove(a);
    (void)guard_add((void *)q, BYTES);
    (void)p[0];
}
