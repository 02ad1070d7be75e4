/* The table for every file operation of the I/O threads: the seam where tests inject faults.
 *
 * Each call returns what the system call returns and sets errno. `io_calls_real` contains the real
 * system calls; `struct IoFaults` wraps them: it fails the n-th call of a kind, makes short writes,
 * parks the caller, or records the changes.
 */
#ifndef NSQCY_IOCALLS_H
#define NSQCY_IOCALLS_H

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

enum IoCall {
    CALL_NONE, CALL_OPEN, CALL_CLOSE, CALL_PWRITE, CALL_PREAD, CALL_FDATASYNC, CALL_FSYNC,
    CALL_RENAME, CALL_UNLINK, CALL_MKDIR, CALL_RMDIR, CALL_FTRUNCATE, CALL_FSTAT,
    CALL_LINK, CALL_FADVISE, CALL_KINDS
};

struct IoCalls {
    int (*open)(struct IoCalls *self, int at, const char *path, int flags, int mode);
    int (*close)(struct IoCalls *self, int fd);
    ssize_t (*pwrite)(struct IoCalls *self, int fd, const void *ptr, size_t n, int64_t offset);
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
};

static int real_open(struct IoCalls *self, int at, const char *path, int flags, int mode) {
    return openat(at, path, flags | O_CLOEXEC, mode);
}
static int real_close(struct IoCalls *self, int fd) {
    return close(fd);
}
static ssize_t real_pwrite(struct IoCalls *self, int fd, const void *ptr, size_t n, int64_t at) {
    return pwrite(fd, ptr, n, at);
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

__attribute__((unused)) static struct IoCalls io_calls_real = {
    real_open, real_close, real_pwrite, real_pread, real_fdatasync, real_fsync, real_rename,
    real_unlink, real_mkdir, real_rmdir, real_ftruncate, real_fstat, real_link, real_forget,
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

__attribute__((unused)) static struct IoCalls io_calls_read_only = {
    refused_open, real_close, refused_pwrite, real_pread, refused_sync, refused_sync,
    refused_rename, refused_path, refused_mkdir, refused_path, refused_ftruncate, real_fstat,
    refused_rename, real_forget,
};

static const char *const io_call_names[CALL_KINDS] = {
    "any", "open", "close", "pwrite", "pread", "fdatasync", "fsync", "rename", "unlink", "mkdir",
    "rmdir", "ftruncate", "fstat", "link", "fadvise",
};

/* The verb that Go's os package uses for the same failure; the health message begins with it. */
static const char *const io_call_verbs[CALL_KINDS] = {
    "io", "open", "close", "write", "read", "sync", "sync", "rename", "remove", "mkdir", "remove",
    "truncate", "stat", "link", "read",
};

/* ---- faults ---- */

#define IO_FAULT_RULES 16

struct IoFault {
    int call;            /* CALL_NONE: any call */
    uint64_t nth;        /* number of such calls until the fault occurs; 1: the next call */
    uint64_t times;      /* number of consecutive calls that fail from then on */
    int error;           /* 0: only `limit` applies */
    int64_t limit;       /* maximum bytes of a pwrite or pread; -1: no limit */
};

/* A call that may have changed the disk. */
struct IoMade {
    struct IoMade *next;
    int call;
    int fd;                  /* file descriptor of the call, or the result of an open */
    int flags;               /* of an open */
    int error;               /* only of a sync, which may have been partially done */
    int64_t offset;          /* of a pwrite; the size of an ftruncate */
    size_t n;                /* bytes of `data` */
    char *path, *to;
    uint8_t *data;
};

struct IoFaults {
    struct IoCalls calls;    /* must be first: a pointer to it is a pointer to the faults */
    pthread_mutex_t lock;
    pthread_cond_t moved;
    struct IoFault rules[IO_FAULT_RULES];
    int rules_used;
    uint64_t made[CALL_KINDS];   /* number of calls of each kind; [CALL_NONE]: all calls */
    uint64_t bytes_read;
    int hold_call;               /* -1: no hold is set */
    uint64_t hold_nth;
    int parked;
    int released;
    int recording;
    int record_failed;           /* out of memory: the record is incomplete */
    struct IoMade *first, *last;
};

/* Counts the call, parks if it is held, and returns the errno to fail with, or 0. */
static int faults_strike(struct IoFaults *f, int call, int64_t *limit) {
    int error = 0;
    pthread_mutex_lock(&f->lock);
    f->made[CALL_NONE]++;
    f->made[call]++;
    if (f->hold_call >= 0 && (f->hold_call == CALL_NONE || f->hold_call == call)
            && --f->hold_nth == 0) {
        f->hold_call = -1;
        f->parked = 1;
        f->released = 0;
        pthread_cond_broadcast(&f->moved);
        while (!f->released)
            pthread_cond_wait(&f->moved, &f->lock);
        f->parked = 0;
    }
    for (int i = 0; i < f->rules_used; i++) {
        struct IoFault *rule = &f->rules[i];
        if (rule->times == 0 || (rule->call != CALL_NONE && rule->call != call))
            continue;
        if (rule->nth > 1) {
            rule->nth--;
            continue;
        }
        rule->times--;
        if (rule->error)
            error = rule->error;
        if (limit && rule->limit >= 0)
            *limit = rule->limit;
    }
    pthread_mutex_unlock(&f->lock);
    return error;
}

static void faults_count_read(struct IoFaults *f, uint64_t n) {
    pthread_mutex_lock(&f->lock);
    f->bytes_read += n;
    pthread_mutex_unlock(&f->lock);
}

static void made_free(struct IoMade *made) {
    free(made->path);
    free(made->to);
    free(made->data);
    free(made);
}

static int made_copy(char **into, const char *text) {
    *into = text ? strdup(text) : NULL;
    return text && !*into ? -1 : 0;
}

/* Adds a call to the record. */
static void faults_record(struct IoFaults *f, struct IoMade what) {
    struct IoMade *made = calloc(1, sizeof(struct IoMade));
    int lost = made == NULL;
    if (made) {
        *made = what;
        lost = made_copy(&made->path, what.path) | made_copy(&made->to, what.to);
        made->data = what.n ? malloc(what.n) : NULL;
        if (made->data)
            memcpy(made->data, what.data, what.n);
        lost |= what.n && !made->data;
    }
    pthread_mutex_lock(&f->lock);
    if (lost)
        f->record_failed = 1;
    if (made && f->last)
        f->last->next = made;
    else if (made)
        f->first = made;
    if (made)
        f->last = made;
    pthread_mutex_unlock(&f->lock);
}

static void faults_forget_record(struct IoFaults *f) {
    while (f->first) {
        struct IoMade *made = f->first;
        f->first = made->next;
        made_free(made);
    }
    f->last = NULL;
}

#define RECORD(...)                                                            \
    do {                                                                       \
        struct IoFaults *f = (struct IoFaults *)self;                          \
        if (f->recording)                                                      \
            faults_record(f, (struct IoMade){__VA_ARGS__});                    \
    } while (0)

#define FAULTS_OR_FAIL(call)                                                   \
    int error = faults_strike((struct IoFaults *)self, call, NULL);            \
    if (error) { errno = error; return -1; }

static int fault_open(struct IoCalls *self, int at, const char *path, int flags, int mode) {
    FAULTS_OR_FAIL(CALL_OPEN)
    int fd = real_open(self, at, path, flags, mode);
    if (fd >= 0)
        RECORD(.call = CALL_OPEN, .fd = fd, .flags = flags, .path = (char *)path);
    return fd;
}
/* A close that fails has still closed the descriptor, as on Linux. */
static int fault_close(struct IoCalls *self, int fd) {
    int error = faults_strike((struct IoFaults *)self, CALL_CLOSE, NULL);
    int rc = real_close(self, fd);
    if (error) { errno = error; return -1; }
    return rc;
}
static ssize_t fault_pwrite(struct IoCalls *self, int fd, const void *ptr, size_t n, int64_t at) {
    int64_t limit = -1;
    int error = faults_strike((struct IoFaults *)self, CALL_PWRITE, &limit);
    if (error) { errno = error; return -1; }
    ssize_t wrote = real_pwrite(self, fd, ptr, limit >= 0 && (size_t)limit < n ? (size_t)limit : n,
                                at);
    if (wrote > 0)
        RECORD(.call = CALL_PWRITE, .fd = fd, .offset = at, .n = (size_t)wrote,
               .data = (uint8_t *)ptr);
    return wrote;
}
static ssize_t fault_pread(struct IoCalls *self, int fd, void *ptr, size_t n, int64_t at) {
    int64_t limit = -1;
    int error = faults_strike((struct IoFaults *)self, CALL_PREAD, &limit);
    if (error) { errno = error; return -1; }
    ssize_t had = real_pread(self, fd, ptr, limit >= 0 && (size_t)limit < n ? (size_t)limit : n,
                             at);
    if (had > 0)
        faults_count_read((struct IoFaults *)self, (uint64_t)had);
    return had;
}
/* While recording, nothing is synced: the reader of the record determines what would survive. */
static int fault_sync(struct IoCalls *self, int fd, int call, int (*sync)(struct IoCalls *, int)) {
    struct IoFaults *faults = (struct IoFaults *)self;
    int error = faults_strike(faults, call, NULL);
    if (!error && !faults->recording && sync(self, fd) < 0)
        error = errno;
    RECORD(.call = call, .fd = fd, .error = error);
    errno = error;
    return error ? -1 : 0;
}
static int fault_fdatasync(struct IoCalls *self, int fd) {
    return fault_sync(self, fd, CALL_FDATASYNC, real_fdatasync);
}
static int fault_fsync(struct IoCalls *self, int fd) {
    return fault_sync(self, fd, CALL_FSYNC, real_fsync);
}
static int fault_rename(struct IoCalls *self, int at, const char *path, const char *to) {
    FAULTS_OR_FAIL(CALL_RENAME)
    int rc = real_rename(self, at, path, to);
    if (rc == 0)
        RECORD(.call = CALL_RENAME, .path = (char *)path, .to = (char *)to);
    return rc;
}
static int fault_unlink(struct IoCalls *self, int at, const char *path) {
    FAULTS_OR_FAIL(CALL_UNLINK)
    int rc = real_unlink(self, at, path);
    if (rc == 0)
        RECORD(.call = CALL_UNLINK, .path = (char *)path);
    return rc;
}
static int fault_mkdir(struct IoCalls *self, int at, const char *path, int mode) {
    FAULTS_OR_FAIL(CALL_MKDIR)
    int rc = real_mkdir(self, at, path, mode);
    if (rc == 0)
        RECORD(.call = CALL_MKDIR, .path = (char *)path);
    return rc;
}
static int fault_rmdir(struct IoCalls *self, int at, const char *path) {
    FAULTS_OR_FAIL(CALL_RMDIR)
    int rc = real_rmdir(self, at, path);
    if (rc == 0)
        RECORD(.call = CALL_RMDIR, .path = (char *)path);
    return rc;
}
static int fault_ftruncate(struct IoCalls *self, int fd, int64_t size) {
    FAULTS_OR_FAIL(CALL_FTRUNCATE)
    int rc = real_ftruncate(self, fd, size);
    if (rc == 0)
        RECORD(.call = CALL_FTRUNCATE, .fd = fd, .offset = size);
    return rc;
}
static int fault_fstat(struct IoCalls *self, int fd, struct stat *into) {
    FAULTS_OR_FAIL(CALL_FSTAT)
    return real_fstat(self, fd, into);
}
static int fault_link(struct IoCalls *self, int at, const char *path, const char *to) {
    FAULTS_OR_FAIL(CALL_LINK)
    return real_link(self, at, path, to);
}
static int fault_forget(struct IoCalls *self, int fd, int64_t offset, int64_t n) {
    FAULTS_OR_FAIL(CALL_FADVISE)
    return real_forget(self, fd, offset, n);
}

static void faults_init(struct IoFaults *f) {
    static const struct IoCalls table = {
        fault_open, fault_close, fault_pwrite, fault_pread, fault_fdatasync, fault_fsync,
        fault_rename, fault_unlink, fault_mkdir, fault_rmdir, fault_ftruncate, fault_fstat,
        fault_link, fault_forget,
    };
    memset(f, 0, sizeof(*f));
    f->calls = table;
    f->hold_call = -1;
    pthread_mutex_init(&f->lock, NULL);
    pthread_cond_init(&f->moved, NULL);
}

/* Returns 0, or -1 if there is no room for another rule. */
static int faults_add(struct IoFaults *f, int call, uint64_t nth, int error, uint64_t times,
                      int64_t limit) {
    struct IoFault rule = {call, nth, times, error, limit};
    int rc = -1;
    pthread_mutex_lock(&f->lock);
    if (f->rules_used < IO_FAULT_RULES) {
        f->rules[f->rules_used++] = rule;
        rc = 0;
    }
    pthread_mutex_unlock(&f->lock);
    return rc;
}

static void faults_clear(struct IoFaults *f) {
    pthread_mutex_lock(&f->lock);
    f->rules_used = 0;
    pthread_mutex_unlock(&f->lock);
}

static uint64_t faults_made(struct IoFaults *f, int call) {
    uint64_t made;
    pthread_mutex_lock(&f->lock);
    made = f->made[call];
    pthread_mutex_unlock(&f->lock);
    return made;
}

static uint64_t faults_bytes_read(struct IoFaults *f) {
    uint64_t n;
    pthread_mutex_lock(&f->lock);
    n = f->bytes_read;
    pthread_mutex_unlock(&f->lock);
    return n;
}

static void faults_hold(struct IoFaults *f, int call, uint64_t nth) {
    pthread_mutex_lock(&f->lock);
    f->hold_call = call;
    f->hold_nth = nth;
    pthread_mutex_unlock(&f->lock);
}

/* Waits until the thread is parked; returns 1, or 0 if `seconds` pass first. */
static int faults_wait_parked(struct IoFaults *f, int seconds) {
    struct timespec until;
    int parked;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += seconds;
    pthread_mutex_lock(&f->lock);
    while (!f->parked && pthread_cond_timedwait(&f->moved, &f->lock, &until) == 0)
        ;
    parked = f->parked;
    pthread_mutex_unlock(&f->lock);
    return parked;
}

static void faults_release(struct IoFaults *f) {
    pthread_mutex_lock(&f->lock);
    f->hold_call = -1;
    f->released = 1;
    pthread_cond_broadcast(&f->moved);
    pthread_mutex_unlock(&f->lock);
}

#endif
