/* LD_PRELOAD: reads of files below $FAILING_READS_DIR whose paths contain $FAILING_READS_PART fail with
 * the errno that the int in the file $FAILING_READS_CONTROL contains; 0: they work, -1: they return
 * nothing. Built by failing_reads.py. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static volatile int *fault;
static const char *folder, *part;
static ssize_t (*real_pread)(int, void *, size_t, off_t);
static ssize_t (*real_read)(int, void *, size_t);

__attribute__((constructor)) static void begin(void) {
    const char *control = getenv("FAILING_READS_CONTROL");
    int fd = control ? open(control, O_RDONLY | O_CLOEXEC) : -1;
    void *shared = fd < 0 ? MAP_FAILED : mmap(NULL, 4, PROT_READ, MAP_SHARED, fd, 0);
    real_pread = dlsym(RTLD_NEXT, "pread");
    real_read = dlsym(RTLD_NEXT, "read");
    folder = getenv("FAILING_READS_DIR");
    part = getenv("FAILING_READS_PART");
    if (shared != MAP_FAILED)
        fault = shared;
    if (fd >= 0)
        close(fd);
}

static int is_below(int fd) {
    char link[64], path[4096];
    ssize_t n;
    snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
    n = readlink(link, path, sizeof(path) - 1);
    if (n <= 0 || !folder || !part)
        return 0;
    path[n] = 0;
    return !strncmp(path, folder, strlen(folder)) && strstr(path, part);
}

ssize_t read(int fd, void *to, size_t size) {
    int error = fault ? *fault : 0;
    if (error && is_below(fd)) {
        errno = error;
        return error < 0 ? 0 : -1;
    }
    return real_read(fd, to, size);
}

ssize_t pread(int fd, void *to, size_t size, off_t at) {
    int error = fault ? *fault : 0;
    if (error && is_below(fd)) {
        errno = error;
        return error < 0 ? 0 : -1;
    }
    return real_pread(fd, to, size, at);
}

ssize_t pread64(int fd, void *to, size_t size, off_t at) {
    return pread(fd, to, size, at);
}
