/* The system calls behind the I/O threads, and the same without those that change something. */
#define _GNU_SOURCE
#include "iocalls.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

static int real_open(struct IoCalls *self, int at, const char *path, int flags, int mode) {
    return openat(at, path, flags | O_CLOEXEC, mode);
}
static int real_close(struct IoCalls *self, int fd) {
    return close(fd);
}
static ssize_t real_pwrite(struct IoCalls *self, int fd, const void *ptr, size_t n, int64_t at) {
    return pwrite(fd, ptr, n, at);
}
static ssize_t real_pwritev(struct IoCalls *self, int fd, const struct iovec *pieces, int count,
                            int64_t at) {
    return pwritev(fd, pieces, count, at);
}
static ssize_t real_pread(struct IoCalls *self, int fd, void *ptr, size_t n, int64_t at) {
    return pread(fd, ptr, n, at);
}
static int real_fdatasync(struct IoCalls *self, int fd) {
    return fdatasync(fd);
}
static int real_fsync(struct IoCalls *self, int fd) {
    return fsync(fd);
}
static int real_rename(struct IoCalls *self, int at, const char *path, const char *to) {
    return renameat(at, path, at, to);
}
static int real_unlink(struct IoCalls *self, int at, const char *path) {
    return unlinkat(at, path, 0);
}
static int real_mkdir(struct IoCalls *self, int at, const char *path, int mode) {
    return mkdirat(at, path, mode);
}
static int real_rmdir(struct IoCalls *self, int at, const char *path) {
    return unlinkat(at, path, AT_REMOVEDIR);
}
static int real_ftruncate(struct IoCalls *self, int fd, int64_t size) {
    return ftruncate(fd, size);
}
static int real_fstat(struct IoCalls *self, int fd, struct stat *into) {
    return fstat(fd, into);
}
static int real_link(struct IoCalls *self, int at, const char *path, const char *to) {
    return linkat(at, path, at, to, 0);
}
/* Drops a range from the page cache, so that the next read comes from the disk. */
static int real_forget(struct IoCalls *self, int fd, int64_t offset, int64_t n) {
    errno = posix_fadvise(fd, offset, n, POSIX_FADV_DONTNEED);
    return errno ? -1 : 0;
}

static int real_syncfs(struct IoCalls *self, int fd) {
    return syncfs(fd);
}
static int real_sync_file_range(struct IoCalls *self, int fd) {
    return sync_file_range(fd, 0, 0, SYNC_FILE_RANGE_WRITE);
}

struct IoCalls io_calls_real = {
    real_open, real_close, real_pwrite, real_pwritev, real_pread, real_fdatasync, real_fsync,
    real_rename, real_unlink, real_mkdir, real_rmdir, real_ftruncate, real_fstat, real_link, real_forget,
    real_syncfs, real_sync_file_range,
};

/* ---- read-only ---- */

/* Every open opens for reading only; all calls that would change something fail as they would on a
 * read-only file system. */
static int refused_open(struct IoCalls *self, int at, const char *path, int flags, int mode) {
    if (flags & (O_CREAT | O_TRUNC)) {
        errno = EROFS;
        return -1;
    }
    return openat(at, path, (flags & ~O_ACCMODE) | O_RDONLY | O_CLOEXEC, mode);
}
static int refused(void) {
    errno = EROFS;
    return -1;
}
static ssize_t refused_pwrite(struct IoCalls *self, int fd, const void *ptr, size_t n, int64_t at) {
    return refused();
}
static ssize_t refused_pwritev(struct IoCalls *self, int fd, const struct iovec *pieces, int count,
                               int64_t at) {
    return refused();
}
static int refused_sync(struct IoCalls *self, int fd) {
    return refused();
}
static int refused_rename(struct IoCalls *self, int at, const char *path, const char *to) {
    return refused();
}
static int refused_path(struct IoCalls *self, int at, const char *path) {
    return refused();
}
static int refused_mkdir(struct IoCalls *self, int at, const char *path, int mode) {
    return refused();
}
static int refused_ftruncate(struct IoCalls *self, int fd, int64_t size) {
    return refused();
}

struct IoCalls io_calls_read_only = {
    refused_open, real_close, refused_pwrite, refused_pwritev, real_pread, refused_sync,
    refused_sync, refused_rename, refused_path, refused_mkdir, refused_path, refused_ftruncate,
    real_fstat, refused_rename, real_forget, refused_sync,
    refused_sync,
};
