/* See iofaults.h. */
#include "iofaults.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

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

/* Returns the errno that the previous write to a file did not report, or 0. */
static int faults_owed(struct IoFaults *f, int fd) {
    int error = 0;
    pthread_mutex_lock(&f->lock);
    if (f->owed && f->owed_fd == fd) {
        error = f->owed;
        f->owed = 0;
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

void faults_forget_record(struct IoFaults *f) {
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

#define REAL_TABLE (((struct IoFaults *)self)->real)
#define REAL(call, ...) REAL_TABLE->call(REAL_TABLE, __VA_ARGS__)

#define FAULTS_OR_FAIL(call)                                                   \
    int error = faults_strike((struct IoFaults *)self, call, NULL);            \
    if (error) { errno = error; return -1; }

static int fault_open(struct IoCalls *self, int at, const char *path, int flags, int mode) {
    FAULTS_OR_FAIL(CALL_OPEN)
    int fd = REAL(open, at, path, flags, mode);
    if (fd >= 0)
        RECORD(.call = CALL_OPEN, .fd = fd, .flags = flags, .path = (char *)path);
    return fd;
}
/* A close that fails has still closed the descriptor, as on Linux. */
static int fault_close(struct IoCalls *self, int fd) {
    int error = faults_strike((struct IoFaults *)self, CALL_CLOSE, NULL);
    int rc = REAL(close, fd);
    if (error) { errno = error; return -1; }
    return rc;
}
static ssize_t fault_pwrite(struct IoCalls *self, int fd, const void *ptr, size_t n, int64_t at) {
    int64_t limit = -1;
    int error = faults_owed((struct IoFaults *)self, fd);
    if (!error)
        error = faults_strike((struct IoFaults *)self, CALL_PWRITE, &limit);
    if (error) { errno = error; return -1; }
    ssize_t wrote = REAL(pwrite, fd, ptr, limit >= 0 && (size_t)limit < n ? (size_t)limit : n,
                                at);
    if (wrote > 0)
        RECORD(.call = CALL_PWRITE, .fd = fd, .offset = at, .n = (size_t)wrote,
               .data = (uint8_t *)ptr);
    return wrote;
}
/* Makes a pwrite of each piece, so that faults strike and are recorded as if each piece were written
 * on its own. If a piece fails after others were written, the next write to the file returns the
 * error: a call that has written something cannot. */
static ssize_t fault_pwritev(struct IoCalls *self, int fd, const struct iovec *pieces, int count,
                             int64_t at) {
    struct IoFaults *f = (struct IoFaults *)self;
    ssize_t total = 0;
    pthread_mutex_lock(&f->lock);
    f->made[CALL_PWRITEV]++;
    pthread_mutex_unlock(&f->lock);
    for (int i = 0; i < count; i++) {
        ssize_t wrote = fault_pwrite(self, fd, pieces[i].iov_base, pieces[i].iov_len, at + total);
        if (wrote < 0 && total) {
            pthread_mutex_lock(&f->lock);
            f->owed_fd = fd;
            f->owed = errno;
            pthread_mutex_unlock(&f->lock);
        }
        if (wrote < 0)
            return total ? total : -1;
        total += wrote;
        if ((size_t)wrote < pieces[i].iov_len)
            break;
    }
    return total;
}
static ssize_t fault_pread(struct IoCalls *self, int fd, void *ptr, size_t n, int64_t at) {
    int64_t limit = -1;
    int error = faults_strike((struct IoFaults *)self, CALL_PREAD, &limit);
    if (error) { errno = error; return -1; }
    ssize_t had = REAL(pread, fd, ptr, limit >= 0 && (size_t)limit < n ? (size_t)limit : n,
                             at);
    if (had > 0)
        faults_count_read((struct IoFaults *)self, (uint64_t)had);
    return had;
}
/* While recording, nothing is synced: the reader of the record determines what would survive. */
static int fault_sync(struct IoCalls *self, int fd, int call, int (*sync)(struct IoCalls *, int)) {
    struct IoFaults *faults = (struct IoFaults *)self;
    int error = faults_strike(faults, call, NULL);
    if (!error && !faults->recording && sync(faults->real, fd) < 0)
        error = errno;
    RECORD(.call = call, .fd = fd, .error = error);
    errno = error;
    return error ? -1 : 0;
}
static int fault_fdatasync(struct IoCalls *self, int fd) {
    return fault_sync(self, fd, CALL_FDATASYNC, REAL_TABLE->fdatasync);
}
static int fault_fsync(struct IoCalls *self, int fd) {
    return fault_sync(self, fd, CALL_FSYNC, REAL_TABLE->fsync);
}
static int fault_syncfs(struct IoCalls *self, int fd) {
    return fault_sync(self, fd, CALL_SYNCFS, REAL_TABLE->syncfs);
}
static int fault_sync_file_range(struct IoCalls *self, int fd) {
    FAULTS_OR_FAIL(CALL_SYNC_FILE_RANGE)
    return REAL(sync_file_range, fd);
}
static int fault_rename(struct IoCalls *self, int at, const char *path, const char *to) {
    FAULTS_OR_FAIL(CALL_RENAME)
    int rc = REAL(rename, at, path, to);
    if (rc == 0)
        RECORD(.call = CALL_RENAME, .path = (char *)path, .to = (char *)to);
    return rc;
}
static int fault_unlink(struct IoCalls *self, int at, const char *path) {
    FAULTS_OR_FAIL(CALL_UNLINK)
    int rc = REAL(unlink, at, path);
    if (rc == 0)
        RECORD(.call = CALL_UNLINK, .path = (char *)path);
    return rc;
}
static int fault_mkdir(struct IoCalls *self, int at, const char *path, int mode) {
    FAULTS_OR_FAIL(CALL_MKDIR)
    int rc = REAL(mkdir, at, path, mode);
    if (rc == 0)
        RECORD(.call = CALL_MKDIR, .path = (char *)path);
    return rc;
}
static int fault_rmdir(struct IoCalls *self, int at, const char *path) {
    FAULTS_OR_FAIL(CALL_RMDIR)
    int rc = REAL(rmdir, at, path);
    if (rc == 0)
        RECORD(.call = CALL_RMDIR, .path = (char *)path);
    return rc;
}
static int fault_ftruncate(struct IoCalls *self, int fd, int64_t size) {
    FAULTS_OR_FAIL(CALL_FTRUNCATE)
    int rc = REAL(ftruncate, fd, size);
    if (rc == 0)
        RECORD(.call = CALL_FTRUNCATE, .fd = fd, .offset = size);
    return rc;
}
static int fault_fstat(struct IoCalls *self, int fd, struct stat *into) {
    FAULTS_OR_FAIL(CALL_FSTAT)
    return REAL(fstat, fd, into);
}
static int fault_link(struct IoCalls *self, int at, const char *path, const char *to) {
    FAULTS_OR_FAIL(CALL_LINK)
    return REAL(link, at, path, to);
}
static int fault_forget(struct IoCalls *self, int fd, int64_t offset, int64_t n) {
    FAULTS_OR_FAIL(CALL_FADVISE)
    return REAL(forget, fd, offset, n);
}

void faults_init(struct IoFaults *f, struct IoCalls *real) {
    static const struct IoCalls table = {
        fault_open, fault_close, fault_pwrite, fault_pwritev, fault_pread, fault_fdatasync,
        fault_fsync, fault_rename, fault_unlink, fault_mkdir, fault_rmdir, fault_ftruncate,
        fault_fstat, fault_link, fault_forget, fault_syncfs,
        fault_sync_file_range,
    };
    memset(f, 0, sizeof(*f));
    f->calls = table;
    f->real = real;
    f->hold_call = -1;
    pthread_mutex_init(&f->lock, NULL);
    pthread_cond_init(&f->moved, NULL);
}

int faults_add(struct IoFaults *f, int call, uint64_t nth, int error, uint64_t times,
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

void faults_clear(struct IoFaults *f) {
    pthread_mutex_lock(&f->lock);
    f->rules_used = 0;
    pthread_mutex_unlock(&f->lock);
}

uint64_t faults_made(struct IoFaults *f, int call) {
    uint64_t made;
    pthread_mutex_lock(&f->lock);
    made = f->made[call];
    pthread_mutex_unlock(&f->lock);
    return made;
}

uint64_t faults_bytes_read(struct IoFaults *f) {
    uint64_t n;
    pthread_mutex_lock(&f->lock);
    n = f->bytes_read;
    pthread_mutex_unlock(&f->lock);
    return n;
}

void faults_hold(struct IoFaults *f, int call, uint64_t nth) {
    pthread_mutex_lock(&f->lock);
    f->hold_call = call;
    f->hold_nth = nth;
    pthread_mutex_unlock(&f->lock);
}

int faults_wait_parked(struct IoFaults *f, int seconds) {
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

void faults_release(struct IoFaults *f) {
    pthread_mutex_lock(&f->lock);
    f->hold_call = -1;
    f->released = 1;
    pthread_cond_broadcast(&f->moved);
    pthread_mutex_unlock(&f->lock);
}
