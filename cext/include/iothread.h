/* The threads that perform every file operation of a process.
 *
 * The hub submits operations (ops) to its own list, kicks once per turn, and collects finished ops
 * when the eventfd is readable. Both sides share one mutex, which is held only to move a few
 * pointers.
 *
 *   hub:     submit -> [submitted] -- kick --> [writes]       (wakes the thread only if it sleeps)
 *   writes:  [writes] -> run -> [finished]                    (eventfd written once per collection)
 *            [writes] -> pass on -> [awaited] or [background]
 *   others:  [their lane] -> run -> [finished]
 *   hub:     [finished] -- collect --> done(arg, error)
 *
 * A lane is a queue and the thread that processes it, in order. Every op first goes through the
 * write queue; an op that may take a long time then moves on to one of the other lanes. So it comes
 * after all earlier ops, and later ops do not wait for it. The caller chooses the lane, and ensures
 * that no two lanes work on the same file in an order-dependent way: all syncs of a file must be in
 * one lane while any is in progress (the kernel reports a write-back error of an open file only
 * once), and so must all ops that name a path. IO_MARK does nothing: its end shows that its lane
 * has run all earlier ops.
 *
 * A hold keeps the ops of some chains on the hub until engine_release(). A log uses it if the files
 * of an earlier log of the same name are still being removed.
 *
 * Writes that are adjacent, in the queue and in their file, run as one. Each is reported with its
 * own outcome.
 *
 * An exiting process syncs many files at once: see engine_share_syncs(). One syncfs() then replaces
 * the syncs of different chains that are queued in a lane. A chain is the ops of one log, and its
 * order is kept: the ops behind a sync run once that sync is done. Other chains go on in the
 * meantime, so that their syncs join. The kernel reports the write-back errors of all files to
 * syncfs(), and also reports each file's own error to the file's next sync. After an error, the
 * files are therefore synced one by one.
 *
 * A File belongs to the threads, except for its reference count. Open files are kept in an LRU
 * list. A file's error is sticky: after a failed write, sync or truncate, its writes, syncs and
 * renames fail with the same errno (reads continue: earlier data is still there). A failed sync is
 * never retried.
 *
 * Tests may use an engine without threads: engine_step() runs its ops one by one, on the hub, so
 * nothing depends on timing.
 */
#ifndef NSQCY_IOTHREAD_H
#define NSQCY_IOTHREAD_H

#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>

#include "iocalls.h"
#include "segment.h"

#define FILE_CREATE 1        /* the first open creates it; it must not exist */
#define FILE_REPLACE 2       /* the first open creates or truncates it */
#define FILE_PARENT 4        /* the first open may create its directory */

typedef struct File {
    struct File *newer, *older;   /* LRU, while open */
    char *path;
    int at;                  /* directory fd that `path` is relative to */
    int flags;
    int fd;                  /* -1: not open; this and the next five are under the files' lock */
    int users;               /* ops using it: it is not closed to make room for other files */
    int error;               /* sticky */
    int error_call;
    int opened;              /* whether the file has been opened once */
    int refs;                /* hub side: owner and ops */
    int failed;              /* hub side: the sticky error as reported by completions */
} File;

enum IoKind {
    IO_WRITE, IO_WRITE_RECORDS, IO_READ, IO_READ_RECORDS, IO_PICK, IO_SYNC, IO_FSYNC, IO_TRUNCATE,
    IO_CLOSE, IO_RENAME, IO_LINK, IO_UNLINK_FILE, IO_MKDIR, IO_UNLINK, IO_RMDIR, IO_SYNC_DIR, IO_FREE,
    IO_MARK
};

enum IoLane {
    LANE_WRITES,             /* its ops are fast while the page cache has room */
    LANE_AWAITED,            /* syncs that a caller waits for */
    LANE_BACKGROUND,         /* syncs that no caller waits for */
    LANES
};

/* The ops of one log: what the threads know about them. */
typedef struct IoChain {
    uint64_t round;          /* the number of the shared sync that it waits for, or waited for */
    int waits;               /* later ops of the chain have been left for the next round */
    _Atomic int doomed;      /* its files will be removed: there is no need to sync or rename them */
    _Atomic int withheld;    /* the error of an op that its next rename needed; 0: none */
    struct IoHold *hold;     /* hub side: its ops wait for this hold, or NULL */
} IoChain;

/* Results of an op, for callers that request them. */
typedef struct IoResult {
    IoChain *chain;          /* set by the caller; NULL: the op shares no sync, and runs in its turn */
    RunFacts facts;          /* of a run written */
    Damages damages;         /* of a run read */
    int call;                /* the call that failed */
    int removes;             /* set by the caller: the op is part of the removal of a log's files */
    int needed;              /* set by the caller: if the op fails, so does the chain's next rename */
} IoResult;

/* A record to be read from a run. */
typedef struct IoPick {
    void *block, *segment;   /* hub side: its block and segment */
    uint64_t seq;
    uint64_t offset;         /* in its file */
    uint32_t maximum;        /* bytes up to the end of its run */
    uint32_t guess;          /* expected size: one call reads it if it is no larger. At least
                                MIN_RECORD, at most `maximum` */
    uint32_t at;             /* where it was stored; NOT_PICKED: there was no room */
} IoPick;

#define NOT_PICKED UINT32_MAX
#define NOT_SOUND (UINT32_MAX - 1)    /* the run must be read to find out what is wrong */

/* Destination of the records, one after the other; used by several ops, all in one lane. */
typedef struct IoPicked {
    uint8_t *memory;
    uint32_t size;
    uint32_t used;
} IoPicked;

typedef int (*io_done)(void *arg, int error);

typedef struct IoOp {
    struct IoOp *next;
    io_done done;
    void *arg;
    File *file;
    char *path;              /* owned: path of an op, or target of a rename or link */
    IoResult *result;
    uint8_t *ptr;
    IoPicked *picked;
    uint64_t n;
    uint64_t offset;
    uint64_t first_seq;
    uint32_t count;
    int dense;
    int quiet;               /* its end alone is no reason to wake the hub, unless it fails */
    int kind;
    int lane;
    int error;
    int64_t took;            /* ns, of a sync; 0: no sync */
} IoOp;

typedef struct IoList {
    IoOp *head, *tail;
} IoList;

/* Ops that have been submitted, but that the threads may not run yet; hub side. */
typedef struct IoHold {
    IoList held;
    uint64_t count;
    int released;
} IoHold;

typedef struct Lane {
    struct IoEngine *engine;
    pthread_t thread;
    sem_t work;              /* posted once when it sleeps and there is work */
    _Atomic(IoOp *) running; /* read by the hub: which op is in progress, or NULL ... */
    _Atomic uint64_t begun;  /* ... and the number of ops that have begun */
    IoList queued;           /* this and the rest are under the engine's lock */
    int sleeping;
    int stop;
} Lane;

typedef struct IoEngine {
    Lane lanes[LANES];
    pthread_mutex_t lock;
    pthread_cond_t answer;
    IoList finished;         /* this and the next six are under the lock */
    int announced;           /* whether the eventfd has been written since the last collection */
    int listening;           /* whether quiet ops are announced until the next collection */
    uint64_t in_hand;        /* ops that the lanes have not finished */
    uint64_t finished_count;
    int waiting;
    uint64_t wakeups;
    int event;
    int started;
    int stepped;             /* without threads */
    struct IoCalls *calls;
    pthread_mutex_t files;
    File newest;             /* LRU ring head; this and the next are under the files' lock */
    int open_files;
    int open_limit;
    int first_reserved;      /* from this descriptor on, all others are in use */
    int file_system;         /* descriptor of a directory on the file system to sync, or -1 */
    pthread_mutex_t sharing; /* held during a shared sync: it reports an error only once */
    _Atomic uint32_t shares_from;    /* number of syncs that are worth a shared one; 0: none */
    int share_failed;        /* a shared sync has failed; this and the next are under `sharing` */
    uint64_t rounds;         /* number of shared syncs */
    IoList submitted;        /* this and the rest are on the hub side */
    uint64_t submitted_count;
    IoList ready;
    IoOp *spare;
    int spares;
    uint64_t outstanding;
    int64_t live_ops;
    int64_t live_files;
} IoEngine;

/* Returns 0 or an errno. */
int engine_start(IoEngine *engine, struct IoCalls *calls, int open_limit, int first_reserved,
                 int stepped);
/* Returns a zeroed op, or NULL. */
IoOp *op_new(IoEngine *engine, int kind);
void op_free(IoEngine *engine, IoOp *op);
void engine_submit(IoEngine *engine, IoOp *op);
/* Submits the ops of a hold, which holds no later op. */
void engine_release(IoEngine *engine, IoHold *hold);
/* Opens a directory on the file system that holds the files. Call this before they are written: only
 * later errors are reported to the descriptor. Returns 0 or an errno. */
int engine_open_file_system(IoEngine *engine, const char *path);
/* Lets one sync of the file system replace the syncs of at least this number of files and
 * directories; 0: never. Meant for an exit: such a sync takes as long as all unwritten data of the
 * file system needs. */
void engine_share_syncs(IoEngine *engine, uint32_t from);
/* Passes the submitted ops to the threads. */
void engine_kick(IoEngine *engine);
/* Moves finished ops to `ready`, after the eventfd was readable. */
void engine_collect(IoEngine *engine);
/* Does so at any other time. */
void engine_collect_early(IoEngine *engine);
/* Announces quiet ops that have finished, or will finish before the next collection. */
void engine_listen(IoEngine *engine);
/* Sleeps until all ops, or enough to be worth a wake-up, have finished. Call this only while ops are
 * outstanding. */
void engine_wait(IoEngine *engine);
/* Returns the op that a lane is running, or NULL. The op may end at any time, but the hub frees it
 * and its file only after collecting it. */
IoOp *lane_running(Lane *lane, uint64_t *begun);
/* The path of an op: valid until the hub frees the op. */
const char *op_path(const IoOp *op);
/* In an engine without threads, runs a lane's first op; returns 0 if it has none. */
int lane_step(Lane *lane);
/* Does the same as a single thread that runs all ops in the order of submission. */
int engine_step(IoEngine *engine);
IoOp *engine_next_ready(IoEngine *engine);
/* Finishes all remaining ops, and joins the threads. */
void engine_stop(IoEngine *engine);
/* Returns a file with one reference, or NULL. It is not opened until an op needs it. */
File *file_new(IoEngine *engine, int at, const char *path, int flags);
void file_delete(IoEngine *engine, File *file);
/* Releases a reference; the last one closes the file in a thread. Returns -1 if out of memory. */
int file_drop(IoEngine *engine, File *file);

#endif
