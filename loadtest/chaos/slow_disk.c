/* A disk that is slow: each write and each sync takes as many milliseconds longer as the file that
 * CHAOS_SLOW_DISK names says, a 32-bit number. Loaded before libc, into nsqd and its workers. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

static volatile const uint32_t *delay;

__attribute__((constructor)) static void look(void) {
    const char *path = getenv("CHAOS_SLOW_DISK");
    int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (fd < 0)
        return;
    void *page = mmap(NULL, sizeof(*delay), PROT_READ, MAP_SHARED, fd, 0);
    close(fd);
    if (page != MAP_FAILED)
        delay = page;
}

static void wait_for_the_disk(void) {
    uint32_t ms = delay ? *delay : 0;
    struct timespec rest = {ms / 1000, (ms % 1000) * 1000000L};
    while (ms && nanosleep(&rest, &rest) < 0)
        ;
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

ssize_t pwrite(int fd, const void *from, size_t n, off_t at) {
    wait_for_the_disk();
    return REAL(pwrite)(fd, from, n, at);
}

ssize_t pwrite64(int fd, const void *from, size_t n, off64_t at) {
    wait_for_the_disk();
    return REAL(pwrite64)(fd, from, n, at);
}

ssize_t pwritev(int fd, const struct iovec *pieces, int count, off_t at) {
    wait_for_the_disk();
    return REAL(pwritev)(fd, pieces, count, at);
}

ssize_t pwritev64(int fd, const struct iovec *pieces, int count, off64_t at) {
    wait_for_the_disk();
    return REAL(pwritev64)(fd, pieces, count, at);
}

int fsync(int fd) {
    wait_for_the_disk();
    return REAL(fsync)(fd);
}

int fdatasync(int fd) {
    wait_for_the_disk();
    return REAL(fdatasync)(fd);
}

int sync_file_range(int fd, off64_t at, off64_t n, unsigned int flags) {
    wait_for_the_disk();
    return REAL(sync_file_range)(fd, at, n, flags);
}

int syncfs(int fd) {
    wait_for_the_disk();
    return REAL(syncfs)(fd);
}
