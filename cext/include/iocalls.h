/* The table for every file operation of the I/O threads: the seam where tests inject faults
 * (iofaults.h).
 *
 * Each call returns what the system call returns and sets errno.
 */
#ifndef NSQCY_IOCALLS_H
#define NSQCY_IOCALLS_H

#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>

enum IoCall {
    CALL_NONE, CALL_OPEN, CALL_CLOSE, CALL_PWRITE, CALL_PREAD, CALL_FDATASYNC, CALL_FSYNC,
    CALL_RENAME, CALL_UNLINK, CALL_MKDIR, CALL_RMDIR, CALL_FTRUNCATE, CALL_FSTAT,
    CALL_LINK, CALL_FADVISE, CALL_PWRITEV, CALL_SYNCFS, CALL_SYNC_FILE_RANGE, CALL_KINDS
};

struct IoCalls {
    int (*open)(struct IoCalls *self, int at, const char *path, int flags, int mode);
    int (*close)(struct IoCalls *self, int fd);
    ssize_t (*pwrite)(struct IoCalls *self, int fd, const void *ptr, size_t n, int64_t offset);
    ssize_t (*pwritev)(struct IoCalls *self, int fd, const struct iovec *pieces, int count,
                       int64_t offset);
    ssize_t (*pread)(struct IoCalls *self, int fd, void *ptr, size_t n, int64_t offset);
    int (*fdatasync)(struct IoCalls *self, int fd);
    int (*fsync)(struct IoCalls *self, int fd);
    int (*rename)(struct IoCalls *self, int at, const char *path, const char *to);
    int (*unlink)(struct IoCalls *self, int at, const char *path);
    int (*mkdir)(struct IoCalls *self, int at, const char *path, int mode);
    int (*rmdir)(struct IoCalls *self, int at, const char *path);
    int (*ftruncate)(struct IoCalls *self, int fd, int64_t size);
    int (*fstat)(struct IoCalls *self, int fd, struct stat *into);
    int (*link)(struct IoCalls *self, int at, const char *path, const char *to);
    int (*forget)(struct IoCalls *self, int fd, int64_t offset, int64_t n);
    int (*syncfs)(struct IoCalls *self, int fd);
    /* Starts to write a file's data, and does not wait for it. */
    int (*sync_file_range)(struct IoCalls *self, int fd);
};

extern struct IoCalls io_calls_real;          /* the system calls */
extern struct IoCalls io_calls_read_only;

static const char *const io_call_names[CALL_KINDS] = {
    "any", "open", "close", "pwrite", "pread", "fdatasync", "fsync", "rename", "unlink", "mkdir",
    "rmdir", "ftruncate", "fstat", "link", "fadvise", "pwritev", "syncfs", "sync_file_range",
};

/* The verb that Go's os package uses for the same failure; the health message begins with it. */
static const char *const io_call_verbs[CALL_KINDS] = {
    "io", "open", "close", "write", "read", "sync", "sync", "rename", "remove", "mkdir", "remove",
    "truncate", "stat", "link", "read", "write", "sync", "sync",
};

#endif
