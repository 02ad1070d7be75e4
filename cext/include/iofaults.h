/* A table of file operations for tests: it fails the n-th call of a kind, makes short reads and
 * writes, parks the caller, or records the changes. Production has no part of it.
 */
#ifndef NSQCY_IOFAULTS_H
#define NSQCY_IOFAULTS_H

#include <pthread.h>

#include "iocalls.h"

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
    struct IoCalls *real;    /* makes the calls that do not fail */
    pthread_mutex_t lock;
    pthread_cond_t moved;
    struct IoFault rules[IO_FAULT_RULES];
    int rules_used;
    uint64_t made[CALL_KINDS];   /* number of calls of each kind; [CALL_NONE]: all calls */
    uint64_t bytes_read;
    int owed, owed_fd;           /* errno that the next write to this descriptor returns */
    int hold_call;               /* -1: no hold is set */
    uint64_t hold_nth;
    int parked;
    int released;
    int recording;
    int record_failed;           /* out of memory: the record is incomplete */
    struct IoMade *first, *last;
};

void faults_init(struct IoFaults *f, struct IoCalls *real);
/* Returns 0, or -1 if there is no room for another rule. */
int faults_add(struct IoFaults *f, int call, uint64_t nth, int error, uint64_t times,
               int64_t limit);
void faults_clear(struct IoFaults *f);
uint64_t faults_made(struct IoFaults *f, int call);
uint64_t faults_bytes_read(struct IoFaults *f);
void faults_hold(struct IoFaults *f, int call, uint64_t nth);
/* Waits until the thread is parked; returns 1, or 0 if `seconds` pass first. */
int faults_wait_parked(struct IoFaults *f, int seconds);
void faults_release(struct IoFaults *f);
void faults_forget_record(struct IoFaults *f);

#endif
