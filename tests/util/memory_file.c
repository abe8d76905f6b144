/* tests/util/memory_file.c */
#include "tests/util/memory_file.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/util/gguf_write.h"

int memory_file(const void *data, size_t bytes, char path[MEMORY_FILE_PATH_MAX])
{
    int fd = memfd_create("test", MFD_CLOEXEC);

    if (fd < 0)
        abort();
    for (size_t at = 0; at < bytes;) {
        ssize_t n = write(fd, (const char *)data + at, bytes - at);

        if (n <= 0)
            abort();
        at += (size_t)n;
    }
    snprintf(path, MEMORY_FILE_PATH_MAX, "/proc/self/fd/%d", fd);
    return fd;
}

int memory_file_gguf(struct gguf_out *o, char path[MEMORY_FILE_PATH_MAX])
{
    size_t bytes;
    void *file = gguf_out_finish(o, &bytes);
    int fd = memory_file(file, bytes, path);

    free(file);
    gguf_out_free(o);
    return fd;
}
