/* tests/sanitizer/asan.c - linked into the test programs of the AddressSanitizer build.
 *
 * Each test's process is searched for leaks when it ends. The process that starts them all is not: it runs
 * Criterion alone, which now and then drops 48 bytes of its own. A suppression by library would
 * hide our leaks as well, for the tests are called from that library. */
#include <errno.h>
#include <sanitizer/lsan_interface.h>
#include <string.h>

/* What Criterion calls a test's process. */
#define WORKER "boxfort-worker"

__attribute__((visibility("default"))) int __lsan_is_turned_off(void)
{
    return strcmp(program_invocation_name, WORKER) != 0;
}
