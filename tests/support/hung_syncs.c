/* Preloaded: while the file named by HUNG_SYNCS exists, syncs do not return. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <unistd.h>

static void wait_for_go(void) {
    const char *path = getenv("HUNG_SYNCS");
    while (path && access(path, F_OK) == 0)
        usleep(10000);
}

int fdatasync(int fd) {
    int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, "fdatasync");
    wait_for_go();
    return real(fd);
}

int fsync(int fd) {
    int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, "fsync");
    wait_for_go();
    return real(fd);
}
