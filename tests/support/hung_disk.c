/* Preloaded: while the file named by HUNG_DISK exists, calls of the kind that HUNG_CALLS names (sync
 * or write) do not return for files in its directory. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

static int is_beside(int fd, const char *path) {
    const char *end = strrchr(path, '/');
    char link[64], found[4096];
    ssize_t n;
    snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
    n = readlink(link, found, sizeof(found));
    return end && n > end - path && strncmp(found, path, end - path + 1) == 0;
}

static void wait_for_go(int fd, const char *kind) {
    const char *path = getenv("HUNG_DISK"), *hung = getenv("HUNG_CALLS");
    if (!path || !hung || strcmp(hung, kind) || access(path, F_OK) || !is_beside(fd, path))
        return;
    while (access(path, F_OK) == 0)
        usleep(10000);
}

int fdatasync(int fd) {
    int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, "fdatasync");
    wait_for_go(fd, "sync");
    return real(fd);
}

int fsync(int fd) {
    int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, "fsync");
    wait_for_go(fd, "sync");
    return real(fd);
}

int sync_file_range(int fd, off64_t at, off64_t size, unsigned int flags) {
    int (*real)(int, off64_t, off64_t, unsigned int) =
        (int (*)(int, off64_t, off64_t, unsigned int))dlsym(RTLD_NEXT, "sync_file_range");
    wait_for_go(fd, "sync");
    return real(fd, at, size, flags);
}

int syncfs(int fd) {
    int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, "syncfs");
    wait_for_go(fd, "sync");
    return real(fd);
}

ssize_t pwrite(int fd, const void *from, size_t size, off_t at) {
    ssize_t (*real)(int, const void *, size_t, off_t) =
        (ssize_t (*)(int, const void *, size_t, off_t))dlsym(RTLD_NEXT, "pwrite");
    wait_for_go(fd, "write");
    return real(fd, from, size, at);
}

ssize_t pwrite64(int fd, const void *from, size_t size, off_t at) {
    return pwrite(fd, from, size, at);
}

ssize_t pwritev(int fd, const struct iovec *pieces, int count, off_t at) {
    ssize_t (*real)(int, const struct iovec *, int, off_t) =
        (ssize_t (*)(int, const struct iovec *, int, off_t))dlsym(RTLD_NEXT, "pwritev");
    wait_for_go(fd, "write");
    return real(fd, pieces, count, at);
}

ssize_t pwritev64(int fd, const struct iovec *pieces, int count, off_t at) {
    return pwritev(fd, pieces, count, at);
}
