/* Preloaded: while the file named by LATE_WAIT exists, the main thread does not begin to wait for a
 * lock. It says by a second file, with `.reached`, that it is about to. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static void hold_back(void) {
    const char *path = getenv("LATE_WAIT");
    char reached[4096];
    if (!path || gettid() != getpid() || access(path, F_OK))
        return;
    snprintf(reached, sizeof(reached), "%s.reached", path);
    close(open(reached, O_CREAT | O_WRONLY, 0600));
    while (access(path, F_OK) == 0)
        usleep(10000);
}

int sem_wait(sem_t *lock) {
    int (*real)(sem_t *) = (int (*)(sem_t *))dlsym(RTLD_NEXT, "sem_wait");
    hold_back();
    return real(lock);
}

int sem_timedwait(sem_t *lock, const struct timespec *end) {
    int (*real)(sem_t *, const struct timespec *) =
        (int (*)(sem_t *, const struct timespec *))dlsym(RTLD_NEXT, "sem_timedwait");
    hold_back();
    return real(lock, end);
}

int sem_clockwait(sem_t *lock, clockid_t clock, const struct timespec *end) {
    int (*real)(sem_t *, clockid_t, const struct timespec *) =
        (int (*)(sem_t *, clockid_t, const struct timespec *))dlsym(RTLD_NEXT, "sem_clockwait");
    hold_back();
    return real(lock, clock, end);
}
