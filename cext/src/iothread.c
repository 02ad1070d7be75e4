/* The threads that perform every file operation of a process: see iothread.h. */
#include "iothread.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#define GROUP_OPS 16            /* maximum of the writes that run as one ... */
#define GROUP_BYTES (512 << 10) /* ... and of their bytes, which should fit into a core's cache */

static inline void list_push(IoList *list, IoOp *op) {
    op->next = NULL;
    if (list->tail)
        list->tail->next = op;
    else
        list->head = op;
    list->tail = op;
}

static inline void list_splice(IoList *onto, IoList *from) {
    if (!from->head)
        return;
    if (onto->tail)
        onto->tail->next = from->head;
    else
        onto->head = from->head;
    onto->tail = from->tail;
    from->head = from->tail = NULL;
}

static inline IoOp *list_pop(IoList *list) {
    IoOp *op = list->head;
    if (op && !(list->head = op->next))
        list->tail = NULL;
    return op;
}

/* ---- thread side: files ---- */

static void lru_unlink(File *file) {
    file->newer->older = file->older;
    file->older->newer = file->newer;
    file->newer = file->older = NULL;
}

static void lru_front(IoEngine *engine, File *file) {
    File *head = &engine->newest;
    file->newer = head;
    file->older = head->older;
    head->older->newer = file;
    head->older = file;
}

/* Takes a file's descriptor; the caller, which holds the files' lock, closes it. */
static int file_take(IoEngine *engine, File *file) {
    int fd = file->fd;
    lru_unlink(file);
    file->fd = -1;
    engine->open_files--;
    return fd;
}

/* Closes the least recently used file that no op uses; returns whether there was one. The kernel
 * reports a write-back error on the next sync through any descriptor of the inode that was opened
 * before the error was reported, so closing a written file early hides nothing. */
static int close_the_oldest(IoEngine *engine) {
    File *file = engine->newest.newer;
    while (file != &engine->newest && file->users)
        file = file->newer;
    if (file == &engine->newest)
        return 0;
    engine->calls->close(engine->calls, file_take(engine, file));
    return 1;
}

/* Opens a path. If the process or the system is out of descriptors, those of files that no op uses
 * are enough to go on with. If only the process's reserve is left, an idle file is closed instead.
 * Under the files' lock. */
static int path_open(IoEngine *engine, int at, const char *path, int flags, int mode) {
    int fd = engine->calls->open(engine->calls, at, path, flags, mode);
    while (fd < 0 && (errno == EMFILE || errno == ENFILE)) {
        int error = errno;
        if (!close_the_oldest(engine)) {
            errno = error;
            break;
        }
        fd = engine->calls->open(engine->calls, at, path, flags, mode);
    }
    if (fd >= engine->first_reserved)
        close_the_oldest(engine);
    return fd;
}

static int file_shut(IoEngine *engine, File *file) {
    int fd = -1;
    pthread_mutex_lock(&engine->files);
    if (file->fd >= 0)
        fd = file_take(engine, file);
    pthread_mutex_unlock(&engine->files);
    return fd >= 0 && engine->calls->close(engine->calls, fd) < 0 ? errno : 0;
}

static int file_make_parent(IoEngine *engine, File *file) {
    char *slash = strrchr(file->path, '/');
    int rc, error;
    if (!slash || slash == file->path)
        return ENOENT;
    *slash = 0;
    rc = engine->calls->mkdir(engine->calls, file->at, file->path, 0700);
    error = rc < 0 && errno != EEXIST ? errno : 0;
    *slash = '/';
    return error;
}

/* file_open() under the files' lock. */
static int file_open_locked(IoEngine *engine, File *file, int *call) {
    struct IoCalls *calls = engine->calls;
    int flags = O_RDWR, error;
    if (file->fd >= 0) {
        lru_unlink(file);
        lru_front(engine, file);
        return 0;
    }
    while (engine->open_files >= engine->open_limit && close_the_oldest(engine))
        ;
    if (!file->opened && (file->flags & FILE_CREATE))
        flags |= O_CREAT | O_EXCL;
    if (!file->opened && (file->flags & FILE_REPLACE))
        flags |= O_CREAT | O_TRUNC;
    *call = CALL_OPEN;
    file->fd = path_open(engine, file->at, file->path, flags, 0600);
    if (file->fd < 0 && errno == ENOENT && (flags & O_CREAT) && (file->flags & FILE_PARENT)) {
        error = file_make_parent(engine, file);
        if (error) {
            *call = CALL_MKDIR;
            return error;
        }
        file->fd = path_open(engine, file->at, file->path, flags, 0600);
    }
    /* What may not be written can still be read. */
    if (file->fd < 0 && flags == O_RDWR && (errno == EROFS || errno == EACCES))
        file->fd = path_open(engine, file->at, file->path, O_RDONLY, 0);
    if (file->fd < 0 && errno == EEXIST) {
        /* never overwritten; a directory in the way is reported as such */
        int fd = path_open(engine, file->at, file->path, O_RDWR, 0);
        error = fd < 0 ? errno : EEXIST;
        if (fd >= 0)
            calls->close(calls, fd);
        return error;
    }
    if (file->fd < 0)
        return errno;
    file->opened = 1;
    engine->open_files++;
    lru_front(engine, file);
    return 0;
}

/* Returns 0, with file->fd open while the op uses the file; or an errno, with *call set. */
static int file_open(IoEngine *engine, File *file, int *call) {
    int error;
    pthread_mutex_lock(&engine->files);
    error = file_open_locked(engine, file, call);
    pthread_mutex_unlock(&engine->files);
    return error;
}

/* Writes pieces to adjacent positions in the file; *wrote is the number of bytes written. */
static int file_write(IoEngine *engine, File *file, struct iovec *pieces, int count,
                      uint64_t offset, uint64_t *wrote, int *call) {
    struct IoCalls *calls = engine->calls;
    ssize_t n = 0;
    *call = CALL_PWRITE;
    for (;;) {
        for (; count && (size_t)n >= pieces->iov_len; pieces++, count--)
            n -= (ssize_t)pieces->iov_len;
        if (!count)
            return 0;
        pieces->iov_base = (uint8_t *)pieces->iov_base + n;
        pieces->iov_len -= (size_t)n;
        do {
            int64_t at = (int64_t)(offset + *wrote);
            n = count == 1 ? calls->pwrite(calls, file->fd, pieces->iov_base, pieces->iov_len, at)
                           : calls->pwritev(calls, file->fd, pieces, count, at);
        } while (n < 0 && errno == EINTR);
        if (n < 0)
            return errno == EBADF ? EROFS : errno;      /* it was opened for reading only */
        if (n == 0)
            return ENOSPC;
        *wrote += (uint64_t)n;
    }
}

/* Closes a file that could not be read, unless another op uses it: the next op opens its path
 * again, where a working file may be by then. */
static void file_reopen(IoEngine *engine, File *file) {
    int fd = -1;
    pthread_mutex_lock(&engine->files);
    if (file->fd >= 0 && file->users == 1)
        fd = file_take(engine, file);
    pthread_mutex_unlock(&engine->files);
    if (fd >= 0)
        engine->calls->close(engine->calls, fd);
}

/* Returns why a read ended early: 0 at the end of the file. */
static int short_read_error(IoEngine *engine, File *file, uint64_t end) {
    struct stat status;
    if (engine->calls->fstat(engine->calls, file->fd, &status) < 0)
        return errno;
    return (uint64_t)status.st_size > end ? EIO : 0;
}

/* Reads n bytes; *got is the number of bytes before the end of the file. */
static int file_read(IoEngine *engine, File *file, uint8_t *ptr, uint64_t n, uint64_t offset,
                     uint64_t *got, int *call) {
    int error = file_open(engine, file, call);
    *got = 0;
    if (error)
        return error;
    *call = CALL_PREAD;
    while (*got < n && !error) {
        ssize_t had = engine->calls->pread(engine->calls, file->fd, ptr + *got, n - *got,
                                           (int64_t)(offset + *got));
        if (had < 0 && errno == EINTR)
            continue;
        if (had < 0)
            error = errno;
        else if (had > 0)
            *got += (uint64_t)had;
        else if (!(error = short_read_error(engine, file, offset + *got)))
            return 0;
    }
    if (error)
        file_reopen(engine, file);
    return error;
}

/* Reads a run, and checks its records. Bytes that the file does not have read as zeros. */
static int file_read_run(IoEngine *engine, IoOp *op, Damages *damages, int *call) {
    uint64_t got = 0;
    int error = file_read(engine, op->file, op->ptr, op->n, op->offset, &got, call);
    if (error)
        return error;
    memset(op->ptr + got, 0, op->n - got);
    run_verify(op->ptr, op->n, op->first_seq, op->count, op->dense, op->offset, damages);
    return 0;
}

/* A record is damaged only if it is damaged again when it is read again from the disk. If two reads
 * differ, neither says what is on the disk. */
static int file_read_records(IoEngine *engine, IoOp *op, int *call) {
    Damages *damages = &op->result->damages;
    Damages first;
    int error = file_read_run(engine, op, damages, call);
    if (error || !damages->found)
        return error;
    first = *damages;
    memset(damages, 0, sizeof(*damages));
    /* the second read is one even if the cache cannot be dropped */
    engine->calls->forget(engine->calls, op->file->fd, (int64_t)op->offset, (int64_t)op->n);
    file_reopen(engine, op->file);
    error = file_read_run(engine, op, damages, call);
    if (!error && damages->found && !damages_equal(&first, damages))
        error = EIO;
    damages_free(&first);
    return error;
}

/* Reads one record, and no more bytes than it has, unless it is smaller than expected. */
static int file_pick(IoEngine *engine, File *file, IoPick *pick, IoPicked *into, int *call) {
    const Record *r = (const Record *)(into->memory + into->used);
    uint8_t *ptr = into->memory + into->used;
    uint64_t room = into->size - into->used, got, more = 0;
    int error;
    if (room < pick->guess)
        return 0;
    error = file_read(engine, file, ptr, pick->guess, pick->offset, &got, call);
    if (error)
        return error;
    pick->at = NOT_SOUND;
    if (got < pick->guess || !record_sane(r, pick->maximum))
        return 0;
    if (r->length > room) {
        pick->at = NOT_PICKED;
        return 0;
    }
    if (r->length > got)
        error = file_read(engine, file, ptr + got, r->length - got, pick->offset + got, &more, call);
    if (!error && got + more >= r->length && record_good(ptr, got + more, 0)
            && r->seq == pick->seq) {
        pick->at = into->used;
        into->used += r->length;
    }
    return error;
}

static int file_pick_all(IoEngine *engine, IoOp *op, int *call) {
    IoPick *picks = (IoPick *)op->ptr;
    int error = 0;
    for (uint32_t i = 0; i < op->count && !error; i++)
        error = file_pick(engine, op->file, &picks[i], op->picked, call);
    return error;
}

static int file_sync(IoEngine *engine, File *file, int whole, int *call) {
    int error = file_open(engine, file, call);
    int rc;
    if (error)
        return error;
    *call = whole ? CALL_FSYNC : CALL_FDATASYNC;
    rc = whole ? engine->calls->fsync(engine->calls, file->fd)
               : engine->calls->fdatasync(engine->calls, file->fd);
    return rc < 0 ? errno : 0;
}

static int file_truncate(IoEngine *engine, File *file, uint64_t size, int *call) {
    int error = file_open(engine, file, call);
    if (error)
        return error;
    *call = CALL_FTRUNCATE;
    return engine->calls->ftruncate(engine->calls, file->fd, (int64_t)size) < 0 ? errno : 0;
}

static int file_rename(IoEngine *engine, IoOp *op, int *call) {
    File *file = op->file;
    *call = CALL_RENAME;
    if (engine->calls->rename(engine->calls, file->at, file->path, op->path) < 0)
        return errno;
    pthread_mutex_lock(&engine->files);
    char *old = file->path;
    file->path = op->path;
    op->path = old;
    pthread_mutex_unlock(&engine->files);
    return 0;
}

/* Gives a file a second name, in a directory that need not exist. */
static int file_link(IoEngine *engine, IoOp *op, int *call) {
    struct IoCalls *calls = engine->calls;
    File *file = op->file;
    int rc;
    *call = CALL_LINK;
    rc = calls->link(calls, file->at, file->path, op->path);
    if (rc < 0 && errno == ENOENT) {
        char *slash = strrchr(op->path, '/');
        *slash = 0;
        rc = calls->mkdir(calls, file->at, op->path, 0700);
        *slash = '/';
        if (rc < 0 && errno != EEXIST)
            return errno;
        rc = calls->link(calls, file->at, file->path, op->path);
    }
    return rc < 0 && errno != EEXIST ? errno : 0;
}

/* ---- thread side: ops ---- */

static int sync_directory(IoEngine *engine, const char *path, int *call) {
    struct IoCalls *calls = engine->calls;
    int fd, error = 0;
    *call = CALL_OPEN;
    pthread_mutex_lock(&engine->files);
    fd = path_open(engine, AT_FDCWD, path, O_RDONLY | O_DIRECTORY, 0);
    error = fd < 0 ? errno : 0;
    pthread_mutex_unlock(&engine->files);
    if (error)
        return error;
    *call = CALL_FSYNC;
    if (calls->fsync(calls, fd) < 0)
        error = errno;
    calls->close(calls, fd);
    return error;
}

static int run_path_op(IoEngine *engine, IoOp *op, int *call) {
    struct IoCalls *calls = engine->calls;
    int rc;
    switch (op->kind) {
    case IO_SYNC_DIR:
        return sync_directory(engine, op->path, call);
    case IO_MKDIR:
        *call = CALL_MKDIR;
        rc = calls->mkdir(calls, AT_FDCWD, op->path, 0700);
        break;
    case IO_RMDIR:
        *call = CALL_RMDIR;
        rc = calls->rmdir(calls, AT_FDCWD, op->path);
        break;
    default:
        *call = CALL_UNLINK;
        rc = calls->unlink(calls, AT_FDCWD, op->path);
        break;
    }
    return rc < 0 ? errno : 0;
}

static int run_file_op(IoEngine *engine, IoOp *op, int *call) {
    File *file = op->file;
    uint64_t got;
    int error;
    switch (op->kind) {
    case IO_READ:
        error = file_read(engine, file, op->ptr, op->n, op->offset, &got, call);
        return error ? error : got < op->n ? ENODATA : 0;
    case IO_READ_RECORDS:
        return file_read_records(engine, op, call);
    case IO_PICK:
        return file_pick_all(engine, op, call);
    case IO_SYNC:
        return file_sync(engine, file, 0, call);
    case IO_FSYNC:
        return file_sync(engine, file, 1, call);
    case IO_TRUNCATE:
        return file_truncate(engine, file, op->n, call);
    case IO_RENAME:
        return file_rename(engine, op, call);
    case IO_LINK:
        return file_link(engine, op, call);
    case IO_UNLINK_FILE:
        if ((file->flags & FILE_CREATE) && !file->opened)
            return 0;        /* never created: a file of that name is not ours */
        file_shut(engine, file);
        *call = CALL_UNLINK;
        return engine->calls->unlink(engine->calls, file->at, file->path) < 0 ? errno : 0;
    default:                 /* IO_CLOSE, IO_FREE */
        *call = CALL_CLOSE;
        return file_shut(engine, file);
    }
}

static int op_writes(int kind) {
    return kind == IO_WRITE || kind == IO_WRITE_RECORDS;
}

static int op_changes_file(int kind) {
    return op_writes(kind) || kind == IO_SYNC || kind == IO_FSYNC || kind == IO_RENAME;
}

/* Acquires a file for an op; returns the file's sticky error. */
static int file_enter(IoEngine *engine, File *file, int *call) {
    int error;
    pthread_mutex_lock(&engine->files);
    file->users++;
    error = file->error;
    *call = file->error_call;
    pthread_mutex_unlock(&engine->files);
    return error;
}

static void file_leave(IoEngine *engine, File *file, int error, int call) {
    pthread_mutex_lock(&engine->files);
    file->users--;
    if (error && !file->error) {
        file->error = error;
        file->error_call = call;
    }
    pthread_mutex_unlock(&engine->files);
}

static int64_t monotonic_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static int op_syncs(int kind) {
    return kind == IO_SYNC || kind == IO_FSYNC || kind == IO_SYNC_DIR;
}

/* Whether the op makes durable what its log is about to remove. */
static int op_is_doomed(const IoOp *op) {
    return (op_syncs(op->kind) || op->kind == IO_RENAME) && op->result && op->result->chain
        && !op->result->removes
        && atomic_load_explicit(&op->result->chain->doomed, memory_order_relaxed);
}

static void withhold_rename(const IoOp *op) {
    if (op->error && op->result && op->result->needed)
        atomic_store(&op->result->chain->withheld, op->error);
}

/* Returns the error of an op that a rename needs, or 0. Only one rename fails for it. */
static int why_not_rename(const IoOp *op) {
    if (op->kind != IO_RENAME || !op->result || !op->result->chain)
        return 0;
    return atomic_exchange(&op->result->chain->withheld, 0);
}

static void run_op(IoEngine *engine, IoOp *op) {
    File *file = op->file;
    int call = CALL_NONE, sticky, withheld, fails;
    int64_t began = op_syncs(op->kind) ? monotonic_ns() : 0;
    if (op->kind == IO_MARK || op_is_doomed(op))
        return;
    if (!file) {
        op->error = run_path_op(engine, op, &call);
    } else {
        sticky = file_enter(engine, file, &call);
        withheld = why_not_rename(op);
        if (sticky && op_changes_file(op->kind)) {
            op->error = sticky;
        } else if (withheld) {
            op->error = withheld;
            call = CALL_RENAME;
        } else {
            call = CALL_NONE;
            op->error = run_file_op(engine, op, &call);
        }
        fails = op_changes_file(op->kind) || op->kind == IO_TRUNCATE;
        file_leave(engine, file, fails ? op->error : 0, call);
    }
    if (op->result)
        op->result->call = call;
    withhold_rename(op);
    if (began)
        op->took = monotonic_ns() - began;
}

/* Fills in the checksums of an op's records. */
static int op_seal(IoOp *op) {
    RunFacts facts;
    if (op->kind != IO_WRITE_RECORDS)
        return 0;
    return run_seal(op->ptr, op->n, op->result ? &op->result->facts : &facts) < 0 ? EINVAL : 0;
}

/* Runs writes to adjacent positions in a file as one. Each fails as it would on its own: those that
 * were written before an error succeed. */
static void run_writes(IoEngine *engine, IoOp **ops, int count) {
    struct iovec pieces[GROUP_OPS];
    File *file = ops[0]->file;
    uint64_t wrote = 0;
    int call, sealed = 0, unsealed = 0, failed;
    int error = file_enter(engine, file, &call);
    if (!error) {
        call = CALL_NONE;
        while (sealed < count && !(unsealed = op_seal(ops[sealed]))) {
            pieces[sealed].iov_base = ops[sealed]->ptr;
            pieces[sealed].iov_len = ops[sealed]->n;
            sealed++;
        }
        if (sealed && (error = file_open(engine, file, &call)))
            sealed = 0;
        if (sealed)
            error = file_write(engine, file, pieces, sealed, ops[0]->offset, &wrote, &call);
        if (!error && unsealed) {
            error = unsealed;
            call = CALL_NONE;
        }
    }
    file_leave(engine, file, error, call);
    failed = 0;
    for (int i = 0; i < count; i++) {
        failed = failed || i >= sealed || wrote < ops[i]->n;
        if (failed)
            ops[i]->error = error;
        else
            wrote -= ops[i]->n;
        if (ops[i]->result)
            ops[i]->result->call = call;
    }
}

/* Whether the first lane passes the op on. */
static int op_goes_on(const IoOp *op) {
    return op->lane != LANE_WRITES;
}

/* A waiting hub is woken for this many finished ops, or for the last one. */
#define WORTH_WAKING 256

static int worth_waking(const IoEngine *engine) {
    return engine->finished_count >= WORTH_WAKING || !engine->in_hand;
}

static void announce(IoEngine *engine) {
    uint64_t one = 1;
    /* cannot fail: the counter is far from full */
    ssize_t wrote = write(engine->event, &one, sizeof(one));
    (void)wrote;
}

static void finish_ops(IoEngine *engine, IoOp **ops, int count) {
    int announces = 0;
    pthread_mutex_lock(&engine->lock);
    for (int i = 0; i < count; i++) {
        list_push(&engine->finished, ops[i]);
        announces |= !ops[i]->quiet || ops[i]->error;
    }
    engine->in_hand -= (uint64_t)count;
    engine->finished_count += (uint64_t)count;
    if (engine->waiting && worth_waking(engine))
        pthread_cond_signal(&engine->answer);
    announces = (announces || engine->listening) && !engine->announced;
    engine->announced |= announces;
    pthread_mutex_unlock(&engine->lock);
    if (announces)
        announce(engine);
}

/* Returns whether the lane sleeps. If so, the caller posts its semaphore once it has unlocked: a
 * thread that wakes up while the lock is held would sleep again. */
static int lane_sleeps(Lane *lane) {
    int was_sleeping = lane->sleeping;
    lane->sleeping = 0;
    return was_sleeping;
}

/* Handles an op in the first lane that belongs to a different lane. */
static void pass_on(IoEngine *engine, IoOp *op) {
    Lane *lane = &engine->lanes[op->lane];
    int slept;
    pthread_mutex_lock(&engine->lock);
    list_push(&lane->queued, op);
    slept = lane_sleeps(lane);
    pthread_mutex_unlock(&engine->lock);
    if (slept)
        sem_post(&lane->work);
}

static void lane_begins(Lane *lane, IoOp *op) {
    atomic_store_explicit(&lane->begun, lane->begun + 1, memory_order_relaxed);
    atomic_store_explicit(&lane->running, op, memory_order_release);
}

/* Runs an op, or several writes that run as one. */
static void lane_do_all(Lane *lane, IoOp **ops, int count) {
    IoEngine *engine = lane->engine;
    IoOp *op = ops[0];
    if (op_goes_on(op) && lane == &engine->lanes[LANE_WRITES]) {
        pass_on(engine, op);
        return;
    }
    lane_begins(lane, op);
    if (op_writes(op->kind))
        run_writes(engine, ops, count);
    else
        run_op(engine, op);
    atomic_store_explicit(&lane->running, NULL, memory_order_release);
    finish_ops(engine, ops, count);
}

static void lane_do(Lane *lane, IoOp *op) {
    lane_do_all(lane, &op, 1);
}

/* ---- thread side: a sync for many files ---- */

/* Syncs the file system. An ext4 file system whose journal was aborted is read-only; syncfs() then
 * does nothing, and succeeds, but the sync of a directory fails. */
static int sync_file_system(IoEngine *engine) {
    int error = 0;
    pthread_mutex_lock(&engine->sharing);
    if (engine->share_failed)
        error = EIO;         /* it has reported the error, which may be that of one of these files */
    else if (engine->calls->syncfs(engine->calls, engine->file_system) < 0
             || engine->calls->fsync(engine->calls, engine->file_system) < 0)
        error = errno;
    if (error) {
        engine->share_failed = 1;
        atomic_store(&engine->shares_from, 0);
    }
    pthread_mutex_unlock(&engine->sharing);
    return error;
}

/* Starts to write what a sync must write. Returns an errno if the op needs a sync of its own: if the
 * file system fails to allocate blocks, this call reports it, but syncfs() need not. */
static int op_start(IoEngine *engine, IoOp *op) {
    int call, error = 0;
    if (!op->file)
        return 0;
    if (!file_enter(engine, op->file, &call)) {
        error = file_open(engine, op->file, &call);
        if (!error && engine->calls->sync_file_range(engine->calls, op->file->fd) < 0)
            error = errno;
    }
    file_leave(engine, op->file, 0, call);
    return error;
}

/* The result of a file's or directory's sync, which a sync of the file system has made. */
static void op_was_synced(IoEngine *engine, IoOp *op) {
    int call = CALL_NONE, fd;
    if (op->file) {
        op->error = file_enter(engine, op->file, &call);
        file_leave(engine, op->file, 0, call);
    } else {
        call = CALL_OPEN;    /* the directory may not exist */
        pthread_mutex_lock(&engine->files);
        fd = path_open(engine, AT_FDCWD, op->path, O_RDONLY | O_DIRECTORY, 0);
        op->error = fd < 0 ? errno : 0;
        pthread_mutex_unlock(&engine->files);
        if (fd >= 0)
            engine->calls->close(engine->calls, fd);
    }
    op->result->call = call;
    withhold_rename(op);
}

static void finish_all(Lane *lane, IoList *ops, void (*end)(IoEngine *engine, IoOp *op)) {
    IoOp *op;
    while ((op = list_pop(ops))) {
        lane_begins(lane, op);
        end(lane->engine, op);
        atomic_store_explicit(&lane->running, NULL, memory_order_release);
        finish_ops(lane->engine, &op, 1);
    }
}

/* Makes one sync for several ops, and ends them. */
static void run_shared(Lane *lane, IoList *ops) {
    IoEngine *engine = lane->engine;
    IoList shared = {NULL, NULL}, single = {NULL, NULL};
    int64_t began = monotonic_ns();
    IoOp *op;
    while ((op = list_pop(ops))) {
        lane_begins(lane, op);
        list_push(op_start(engine, op) ? &single : &shared, op);
    }
    if (shared.head) {
        lane_begins(lane, shared.head);
        if (sync_file_system(engine))
            list_splice(&single, &shared);
        else
            shared.head->took = monotonic_ns() - began;
    }
    finish_all(lane, &shared, op_was_synced);
    finish_all(lane, &single, run_op);
}

static int shares_sync(const IoOp *op) {
    return op_syncs(op->kind) && op->result && op->result->chain;
}

/* Whether one sync of the file system should replace those in a list. */
static int worth_sharing(IoEngine *engine, const Lane *lane, const IoOp *op) {
    uint32_t from = atomic_load(&engine->shares_from), count = 0;
    if (!from || lane == &engine->lanes[LANE_WRITES])
        return 0;
    for (; op && count < from; op = op->next)
        count += shares_sync(op);
    return count >= from;
}

/* Runs the ops of a list up to the first sync of each chain, then one sync for all of these.
 * Returns the rest of the list. */
static IoOp *run_round(Lane *lane, IoOp *op) {
    IoEngine *engine = lane->engine;
    IoList shared = {NULL, NULL}, rest = {NULL, NULL};
    IoOp *next;
    uint64_t round;
    pthread_mutex_lock(&engine->sharing);
    round = ++engine->rounds;
    pthread_mutex_unlock(&engine->sharing);
    for (; op; op = next) {
        IoChain *chain = op->result ? op->result->chain : NULL;
        int is_behind = chain && chain->round == round;
        next = op->next;
        if (shares_sync(op) && !(is_behind && chain->waits)) {
            if (!is_behind) {
                chain->round = round;
                chain->waits = 0;
            }
            list_push(&shared, op);
        } else if (is_behind) {
            chain->waits = 1;
            list_push(&rest, op);
        } else {
            lane_do(lane, op);
        }
    }
    run_shared(lane, &shared);
    return rest.head;
}

/* Collects the writes at the head of a list that can run as one; returns their number. One call for
 * many small runs costs less: the page cache then takes larger pieces of memory. */
static int gather(IoOp *op, IoOp **group, int goes_on) {
    uint64_t bytes = op->n;
    int count = 1;
    group[0] = op;
    if (!op_writes(op->kind) || goes_on)
        return 1;
    for (IoOp *next = op->next; next && count < GROUP_OPS; op = next, next = next->next) {
        bytes += next->n;
        if (!op_writes(next->kind) || next->file != op->file || next->lane != op->lane
                || next->offset != op->offset + op->n || bytes > GROUP_BYTES)
            break;
        group[count++] = next;
    }
    return count;
}

static void *lane_main(void *arg) {
    Lane *lane = arg;
    IoEngine *engine = lane->engine;
    int is_first = lane == &engine->lanes[LANE_WRITES];
    for (;;) {
        IoOp *op, *next, *group[GROUP_OPS];
        pthread_mutex_lock(&engine->lock);
        while (!lane->queued.head && !lane->stop) {
            lane->sleeping = 1;
            pthread_mutex_unlock(&engine->lock);
            while (sem_wait(&lane->work) < 0)
                ;                /* interrupted */
            pthread_mutex_lock(&engine->lock);
        }
        op = lane->queued.head;
        lane->queued.head = lane->queued.tail = NULL;
        pthread_mutex_unlock(&engine->lock);
        if (!op)
            return NULL;
        for (; op; op = next) {
            if (worth_sharing(engine, lane, op)) {
                next = run_round(lane, op);
                continue;
            }
            int count = gather(op, group, is_first && op_goes_on(op));
            next = group[count - 1]->next;
            lane_do_all(lane, group, count);
        }
    }
}

/* ---- hub side ---- */

/* Lets the first `count` lanes finish their ops, and ends their threads. */
static void lanes_stop(IoEngine *engine, int count) {
    for (int i = 0; i < count; i++) {
        Lane *lane = &engine->lanes[i];      /* the first lane first: it passes ops on */
        int slept;
        pthread_mutex_lock(&engine->lock);
        lane->stop = 1;
        slept = lane_sleeps(lane);
        pthread_mutex_unlock(&engine->lock);
        if (slept)
            sem_post(&lane->work);
        pthread_join(lane->thread, NULL);
    }
}

static int lanes_start(IoEngine *engine) {
    sigset_t all, before;
    int error = 0, count = 0;
    sigfillset(&all);        /* the hub handles signals */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    while (count < LANES) {
        Lane *lane = &engine->lanes[count];
        error = pthread_create(&lane->thread, NULL, lane_main, lane);
        if (error)
            break;
        count++;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error)
        lanes_stop(engine, count);
    return error;
}

/* A lock is held for less time than a thread needs to go to sleep, so it is worth spinning. */
static void lock_init(pthread_mutex_t *lock) {
    pthread_mutexattr_t spins;
    pthread_mutexattr_init(&spins);
    pthread_mutexattr_settype(&spins, PTHREAD_MUTEX_ADAPTIVE_NP);
    pthread_mutex_init(lock, &spins);
    pthread_mutexattr_destroy(&spins);
}

int engine_start(IoEngine *engine, struct IoCalls *calls, int open_limit,
                        int first_reserved, int stepped) {
    int error = 0;
    memset(engine, 0, sizeof(*engine));
    crc32c_tables();
    engine->calls = calls;
    engine->open_limit = open_limit;
    engine->first_reserved = first_reserved;
    engine->stepped = stepped;
    engine->file_system = -1;
    engine->newest.newer = engine->newest.older = &engine->newest;
    engine->event = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (engine->event < 0)
        return errno;
    lock_init(&engine->lock);
    lock_init(&engine->files);
    lock_init(&engine->sharing);
    pthread_cond_init(&engine->answer, NULL);
    for (int i = 0; i < LANES; i++) {
        engine->lanes[i].engine = engine;
        sem_init(&engine->lanes[i].work, 0, 0);
    }
    if (!stepped)
        error = lanes_start(engine);
    if (error)
        close(engine->event);
    else
        engine->started = 1;
    return error;
}

#define SPARE_OPS 1024

IoOp *op_new(IoEngine *engine, int kind) {
    IoOp *op = engine->spare;
    if (op) {
        engine->spare = op->next;
        engine->spares--;
    } else {
        op = malloc(sizeof(IoOp));
        if (!op)
            return NULL;
    }
    memset(op, 0, sizeof(*op));
    op->kind = kind;
    engine->live_ops++;
    return op;
}

void op_free(IoEngine *engine, IoOp *op) {
    free(op->path);
    engine->live_ops--;
    if (engine->spares >= SPARE_OPS) {
        free(op);
        return;
    }
    op->next = engine->spare;
    engine->spare = op;
    engine->spares++;
}

void engine_submit(IoEngine *engine, IoOp *op) {
    IoHold *hold = op->result && op->result->chain ? op->result->chain->hold : NULL;
    if (op->file)
        op->file->refs++;
    engine->outstanding++;
    if (hold && !hold->released) {
        hold->count++;
        list_push(&hold->held, op);
        return;
    }
    engine->submitted_count++;
    list_push(&engine->submitted, op);
}

void engine_release(IoEngine *engine, IoHold *hold) {
    hold->released = 1;
    list_splice(&engine->submitted, &hold->held);
    engine->submitted_count += hold->count;
    hold->count = 0;
}

int engine_open_file_system(IoEngine *engine, const char *path) {
    engine->file_system = engine->calls->open(engine->calls, AT_FDCWD, path,
                                              O_RDONLY | O_DIRECTORY, 0);
    return engine->file_system < 0 ? errno : 0;
}

void engine_share_syncs(IoEngine *engine, uint32_t from) {
    pthread_mutex_lock(&engine->sharing);
    atomic_store(&engine->shares_from,
                 engine->file_system < 0 || engine->share_failed ? 0 : from);
    pthread_mutex_unlock(&engine->sharing);
}

void engine_kick(IoEngine *engine) {
    if (!engine->submitted.head)
        return;
    Lane *writes = &engine->lanes[LANE_WRITES];
    int slept;
    pthread_mutex_lock(&engine->lock);
    list_splice(&writes->queued, &engine->submitted);
    engine->in_hand += engine->submitted_count;
    engine->submitted_count = 0;
    slept = lane_sleeps(writes);
    pthread_mutex_unlock(&engine->lock);
    engine->wakeups += (uint64_t)slept;
    if (slept)
        sem_post(&writes->work);
}

IoOp *lane_running(Lane *lane, uint64_t *begun) {
    *begun = atomic_load_explicit(&lane->begun, memory_order_relaxed);
    return atomic_load_explicit(&lane->running, memory_order_acquire);
}

const char *op_path(const IoOp *op) {
    return op->file ? op->file->path : op->path;
}

void engine_collect(IoEngine *engine) {
    uint64_t count;
    /* EAGAIN: not signalled, which is harmless here */
    ssize_t had = read(engine->event, &count, sizeof(count));
    (void)had;
    pthread_mutex_lock(&engine->lock);
    list_splice(&engine->ready, &engine->finished);
    engine->finished_count = 0;
    engine->announced = 0;
    engine->listening = 0;
    pthread_mutex_unlock(&engine->lock);
}

void engine_collect_early(IoEngine *engine) {
    pthread_mutex_lock(&engine->lock);
    list_splice(&engine->ready, &engine->finished);
    engine->finished_count = 0;
    pthread_mutex_unlock(&engine->lock);
}

void engine_listen(IoEngine *engine) {
    int announces;
    pthread_mutex_lock(&engine->lock);
    engine->listening = 1;
    announces = engine->finished.head && !engine->announced;
    engine->announced |= announces;
    pthread_mutex_unlock(&engine->lock);
    if (announces)
        announce(engine);
}

int lane_step(Lane *lane) {
    IoEngine *engine = lane->engine;
    IoOp *op = lane->queued.head, *next;
    if (worth_sharing(engine, lane, op)) {
        IoList rest = {NULL, NULL};
        lane->queued.head = lane->queued.tail = NULL;
        for (op = run_round(lane, op); op; op = next) {
            next = op->next;
            list_push(&rest, op);
        }
        list_splice(&lane->queued, &rest);
        return 1;
    }
    while (op && op_goes_on(op) && lane == &engine->lanes[LANE_WRITES]) {
        lane_do(lane, list_pop(&lane->queued));
        op = lane->queued.head;
    }
    if (!op)
        return 0;
    lane_do(lane, list_pop(&lane->queued));
    return 1;
}

int engine_step(IoEngine *engine) {
    Lane *writes = &engine->lanes[LANE_WRITES];
    IoOp *op;
    if (atomic_load(&engine->shares_from) && lane_step(writes))
        return 1;            /* the ops of the other lanes gather */
    op = writes->queued.head;
    for (int i = LANE_AWAITED; i < LANES; i++) {
        if (lane_step(&engine->lanes[i]))
            return 1;
    }
    if (!op || !op_goes_on(op))
        return lane_step(writes);
    lane_do(writes, list_pop(&writes->queued));
    return lane_step(&engine->lanes[op->lane]);
}

void engine_wait(IoEngine *engine) {
    if (engine->stepped) {
        engine_step(engine);
        return;
    }
    pthread_mutex_lock(&engine->lock);
    engine->waiting = 1;
    while (!worth_waking(engine))
        pthread_cond_wait(&engine->answer, &engine->lock);
    engine->waiting = 0;
    pthread_mutex_unlock(&engine->lock);
}

IoOp *engine_next_ready(IoEngine *engine) {
    IoOp *op = list_pop(&engine->ready);
    if (op)
        engine->outstanding--;
    return op;
}

void engine_stop(IoEngine *engine) {
    IoOp *op;
    if (!engine->started)
        return;
    while (engine->stepped && engine_step(engine))
        ;
    if (!engine->stepped)
        lanes_stop(engine, LANES);
    engine->started = 0;
    while (engine->newest.newer != &engine->newest)
        file_shut(engine, engine->newest.newer);
    close(engine->event);
    if (engine->file_system >= 0)
        engine->calls->close(engine->calls, engine->file_system);
    while ((op = engine->spare)) {
        engine->spare = op->next;
        free(op);
    }
    for (int i = 0; i < LANES; i++)
        sem_destroy(&engine->lanes[i].work);
    pthread_mutex_destroy(&engine->lock);
    pthread_mutex_destroy(&engine->files);
    pthread_mutex_destroy(&engine->sharing);
    pthread_cond_destroy(&engine->answer);
}

File *file_new(IoEngine *engine, int at, const char *path, int flags) {
    File *file = calloc(1, sizeof(File));
    if (!file)
        return NULL;
    file->path = strdup(path);
    if (!file->path) {
        free(file);
        return NULL;
    }
    file->at = at;
    file->fd = -1;
    file->flags = flags;
    file->refs = 1;
    engine->live_files++;
    return file;
}

void file_delete(IoEngine *engine, File *file) {
    engine->live_files--;
    free(file->path);
    free(file);
}

int file_drop(IoEngine *engine, File *file) {
    IoOp *op;
    if (--file->refs > 0)
        return 0;
    if (!engine->started) {
        file_delete(engine, file);
        return 0;
    }
    op = op_new(engine, IO_FREE);
    if (!op) {
        file->refs++;        /* leave it open rather than free it while a thread uses it */
        return -1;
    }
    op->file = file;
    engine_submit(engine, op);
    return 0;
}
