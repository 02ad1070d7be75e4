/* The floor: the system calls of an NSQ broker, and nothing of what it does in between.
 *
 * One thread and one epoll.  In a turn it receives once from every connection that has something,
 * and then sends once to every connection that has something coming: one OK for each IDENTIFY, SUB,
 * PUB and MPUB, all of a turn together, and to subscribers as many message frames as their RDY has
 * room for, from a buffer made beforehand.  It receives and sends as many bytes at once as nsqcy
 * does (SENT_ENOUGH: its OUTPUT_ENOUGH), so that it makes as many calls; a subscriber with room for
 * more has it in the next turn, which then waits for nothing.  Bodies are received and skipped,
 * message frames are the same again and again, and a FIN is 21 bytes whose id nobody reads.  Nothing
 * is queued, looked up, copied, timed or kept.
 *
 *     floor BODY_SIZE        prints its port, serves until its stdin ends
 */

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    RECEIVE_SIZE = 131072,
    SENT_ENOUGH = 131072,              /* bytes; no further frame begins behind them */
    EVENTS = 64,
    FRAME_HEADER = 8,
    MESSAGE_HEADER = 26,
    FIN_LINE = 21,
    OK_FRAME = 10,
    MOST_OKS = 16384,
    LONGEST_LINE = 160,
};

struct conn {
    struct conn *next;
    int fd;
    int subscribed;
    int answers;          /* OKs to send */
    long ready;           /* RDY */
    long in_flight;
    size_t fin_bytes;     /* of a FIN that has come in part */
    size_t frame_sent;    /* of a message frame that went out in part */
    size_t skip;          /* bytes of a body still to come */
    size_t have;          /* bytes in `line` */
    int wants_size;       /* `line` collects the four bytes behind a command with a body */
    int watching;         /* for room to send */
    char line[LONGEST_LINE];
};

static char input[RECEIVE_SIZE];
static char oks[MOST_OKS * OK_FRAME];
static char *frames;
static long frame_count;               /* as many as are sent at once */
static size_t frame_size;
static struct conn *conns;
static int poll_fd;

static void die(const char *what)
{
    perror(what);
    exit(1);
}

static void watch(struct conn *conn, int operation, uint32_t events)
{
    struct epoll_event event = {.events = events, .data.ptr = conn};
    if (epoll_ctl(poll_fd, operation, conn->fd, &event) < 0)
        die("epoll_ctl");
}

static void watch_output(struct conn *conn, int on)
{
    if (conn->fd >= 0 && conn->watching != on) {
        conn->watching = on;
        watch(conn, EPOLL_CTL_MOD, on ? EPOLLIN | EPOLLOUT : EPOLLIN);
    }
}

static void on_line(struct conn *conn)
{
    const char *line = conn->line;
    if (!memcmp(line, "RDY ", 4)) {
        conn->ready = atol(line + 4);
    } else if (!memcmp(line, "SUB ", 4)) {
        conn->subscribed = 1;
        conn->answers++;
    } else if (line[0] != 'N') {       /* NOP */
        conn->wants_size = 1;
    }
}

/* The part of `data` that the state the connection is in can take. */
static size_t take(struct conn *conn, const char *data, size_t n)
{
    uint32_t size;
    size_t used = 0;
    if (conn->skip) {
        used = n < conn->skip ? n : conn->skip;
        conn->skip -= used;
        return used;
    }
    if (conn->wants_size) {
        while (conn->have < 4 && used < n)
            conn->line[conn->have++] = data[used++];
        if (conn->have == 4) {
            memcpy(&size, conn->line, 4);
            conn->skip = ntohl(size);
            conn->have = conn->wants_size = 0;
            conn->answers++;
        }
        return used;
    }
    while (used < n) {
        char c = data[used++];
        if (c == '\n') {
            conn->line[conn->have] = 0;
            conn->have = 0;
            on_line(conn);
            break;
        }
        if (conn->have == LONGEST_LINE - 1) {
            fputs("the line is too long\n", stderr);
            exit(1);
        }
        conn->line[conn->have++] = c;
    }
    return used;
}

static void close_conn(struct conn *conn)
{
    close(conn->fd);
    conn->fd = -1;
}

static void receive(struct conn *conn)
{
    size_t at = 0;
    ssize_t n = recv(conn->fd, input, RECEIVE_SIZE, MSG_DONTWAIT);
    if (n <= 0) {
        if (n == 0 || (errno != EAGAIN && errno != EINTR))
            close_conn(conn);
        return;
    }
    if (conn->in_flight && conn->have == 0 && (conn->fin_bytes || input[0] == 'F')) {
        conn->fin_bytes += n;
        conn->in_flight -= conn->fin_bytes / FIN_LINE;
        conn->fin_bytes %= FIN_LINE;
        return;
    }
    while (at < (size_t)n)
        at += take(conn, input + at, n - at);
}

/* 0 when the socket took less than all. */
static int send_all(struct conn *conn, const char *data, size_t n, size_t *sent)
{
    ssize_t taken = send(conn->fd, data, n, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (taken < 0 && errno != EAGAIN && errno != EINTR) {
        *sent = 0;
        close_conn(conn);
        return 1;
    }
    *sent = taken < 0 ? 0 : taken;
    return *sent == n;
}

static int has_room(const struct conn *conn)
{
    return conn->fd >= 0 && !conn->watching
        && (conn->ready > conn->in_flight || conn->frame_sent);
}

static void deliver(struct conn *conn)
{
    size_t sent, n;
    long room = conn->ready - conn->in_flight;
    if (room > frame_count)
        room = frame_count;
    if (room < 0)
        room = 0;
    /* What went out in part counts as in flight already. */
    n = room * frame_size + (conn->frame_sent ? frame_size - conn->frame_sent : 0);
    watch_output(conn, !send_all(conn, frames + conn->frame_sent, n, &sent));
    sent += conn->frame_sent;
    conn->in_flight += (long)((sent + frame_size - 1) / frame_size) - (conn->frame_sent != 0);
    conn->frame_sent = sent % frame_size;
}

static void answer(struct conn *conn)
{
    size_t sent;
    if (conn->answers > MOST_OKS || !send_all(conn, oks, conn->answers * OK_FRAME, &sent)) {
        fputs("the answers do not fit into the socket\n", stderr);
        exit(1);
    }
    conn->answers = 0;
}

static void accept_one(int listener)
{
    int one = 1;
    struct conn *conn = calloc(1, sizeof *conn);
    if (!conn || (conn->fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK)) < 0)
        die("accept");
    setsockopt(conn->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    conn->skip = 4;                    /* "  V2" */
    conn->next = conns;
    conns = conn;
    watch(conn, EPOLL_CTL_ADD, EPOLLIN);
}

static void make_frames(size_t body)
{
    frame_size = FRAME_HEADER + MESSAGE_HEADER + body;
    frame_count = (SENT_ENOUGH + frame_size - 1) / frame_size;
    frames = calloc(frame_count + 1, frame_size);   /* one more: the rest of the last one */
    if (!frames)
        die("calloc");
    for (long i = 0; i <= frame_count; i++) {
        char *at = frames + i * frame_size;
        uint32_t size = htonl(frame_size - 4), type = htonl(2);
        memcpy(at, &size, 4);
        memcpy(at + 4, &type, 4);
        snprintf(at + FRAME_HEADER + 10, 17, "%016lx", i);
        memset(at + FRAME_HEADER + MESSAGE_HEADER, 'x', body);
    }
    for (int i = 0; i < MOST_OKS; i++)
        memcpy(oks + i * OK_FRAME, "\0\0\0\6\0\0\0\0OK", OK_FRAME);
}

static int listen_somewhere(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&address, length) < 0 || listen(fd, 1024) < 0
        || getsockname(fd, (struct sockaddr *)&address, &length) < 0)
        die("listen");
    printf("%d\n", ntohs(address.sin_port));
    fflush(stdout);
    return fd;
}

/* Send to everybody who has something coming; whether somebody could have more at once. */
static int send_to_all(void)
{
    int more = 0;
    struct conn **link = &conns;
    while (*link) {
        struct conn *conn = *link;
        if (conn->fd >= 0 && conn->answers)
            answer(conn);
        if (conn->subscribed && has_room(conn))
            deliver(conn);
        if (conn->fd < 0) {
            *link = conn->next;
            free(conn);
            continue;
        }
        more |= conn->subscribed && has_room(conn);
        link = &conn->next;
    }
    return more;
}

int main(int argc, char **argv)
{
    struct epoll_event events[EVENTS];
    struct epoll_event stop = {.events = EPOLLIN, .data.ptr = NULL};
    int listener = listen_somewhere();
    int more = 0;
    static struct conn door;
    make_frames(argc > 1 ? strtoul(argv[1], NULL, 10) : 200);
    poll_fd = epoll_create1(0);
    if (poll_fd < 0 || epoll_ctl(poll_fd, EPOLL_CTL_ADD, 0, &stop) < 0)
        die("epoll");
    door.fd = listener;
    watch(&door, EPOLL_CTL_ADD, EPOLLIN);
    for (;;) {
        int count = epoll_wait(poll_fd, events, EVENTS, more ? 0 : -1);
        for (int i = 0; i < count; i++) {
            struct conn *conn = events[i].data.ptr;
            if (!conn)
                return 0;
            if (conn == &door) {
                accept_one(listener);
                continue;
            }
            if (events[i].events & EPOLLOUT)
                watch_output(conn, 0);
            if (events[i].events & ~EPOLLOUT)
                receive(conn);
        }
        more = send_to_all();
    }
}
