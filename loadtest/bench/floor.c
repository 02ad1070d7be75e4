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
 * With a certificate every connection is asked to begin TLS after its IDENTIFY.  A turn then also
 * decrypts what it received and encrypts what it sends, in the largest records possible, which is
 * the cost of the cipher itself.
 *
 *     floor BODY_SIZE [CERTIFICATE KEY]      prints its port, serves until its stdin ends
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

#ifdef WITH_TLS
#include <openssl/ssl.h>
#else
#define SSL_free(tls)
#endif

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
    int negotiates;       /* its IDENTIFY is answered by the beginning of TLS */
#ifdef WITH_TLS
    SSL *tls;
    BIO *in, *out;        /* encrypted bytes on both sides of `tls` */
#else
    void *tls;
#endif
    char *rest;           /* encrypted bytes that the socket did not take */
    size_t rest_size;
    char line[LONGEST_LINE];
};

static char input[RECEIVE_SIZE];
static int with_tls;
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
            if (with_tls && !conn->tls)
                conn->negotiates = 1;
            else
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

/* Handle bytes in plain text. */
static void consume(struct conn *conn, const char *data, size_t n)
{
    size_t at = 0;
    if (conn->in_flight && conn->have == 0 && (conn->fin_bytes || data[0] == 'F')) {
        conn->fin_bytes += n;
        conn->in_flight -= conn->fin_bytes / FIN_LINE;
        conn->fin_bytes %= FIN_LINE;
        return;
    }
    while (at < n)
        at += take(conn, data + at, n - at);
}

#ifdef WITH_TLS

static char clear[RECEIVE_SIZE];
static char sealed[2 * SENT_ENOUGH];
static SSL_CTX *context;

static void load_certificate(const char *certificate, const char *key)
{
    with_tls = 1;
    context = SSL_CTX_new(TLS_server_method());
    if (!context || SSL_CTX_use_certificate_chain_file(context, certificate) != 1
        || SSL_CTX_use_PrivateKey_file(context, key, SSL_FILETYPE_PEM) != 1) {
        fputs("the certificate cannot be used\n", stderr);
        exit(1);
    }
}

/* Send encrypted bytes; keep what the socket does not take, and watch it. */
static void send_sealed(struct conn *conn, const char *data, size_t n)
{
    ssize_t sent = send(conn->fd, data, n, MSG_NOSIGNAL | MSG_DONTWAIT);
    char *rest = NULL;
    if (sent < 0 && errno != EAGAIN && errno != EINTR) {
        close_conn(conn);
        return;
    }
    sent = sent < 0 ? 0 : sent;
    if ((size_t)sent < n) {
        rest = malloc(n - sent);
        if (!rest)
            die("malloc");
        memcpy(rest, data + sent, n - sent);
    }
    free(conn->rest);
    conn->rest = rest;
    conn->rest_size = n - sent;
    watch_output(conn, rest != NULL);
}

static void send_rest(struct conn *conn)
{
    char *rest = conn->rest;
    conn->rest = NULL;
    send_sealed(conn, rest, conn->rest_size);
    free(rest);
}

static void send_encrypted(struct conn *conn)
{
    int n = BIO_read(conn->out, sealed, sizeof sealed);
    if (n > 0)
        send_sealed(conn, sealed, n);
}

static void begin_tls(struct conn *conn)
{
    static const char offer[] = "\0\0\0\024\0\0\0\0{\"tls_v1\": true}";
    conn->negotiates = 0;
    if (send(conn->fd, offer, sizeof offer - 1, MSG_NOSIGNAL) != sizeof offer - 1)
        die("send");
    conn->tls = SSL_new(context);
    conn->in = BIO_new(BIO_s_mem());
    conn->out = BIO_new(BIO_s_mem());
    if (!conn->tls || !conn->in || !conn->out)
        die("SSL_new");
    SSL_set_bio(conn->tls, conn->in, conn->out);
    SSL_set_accept_state(conn->tls);
}

/* Handle encrypted bytes. */
static void decrypt(struct conn *conn, const char *data, size_t n)
{
    int got;
    if (BIO_write(conn->in, data, n) != (int)n)
        die("BIO_write");
    if (!SSL_is_init_finished(conn->tls)) {
        SSL_do_handshake(conn->tls);
        send_encrypted(conn);
        if (!SSL_is_init_finished(conn->tls))
            return;
        conn->answers++;
    }
    while ((got = SSL_read(conn->tls, clear, RECEIVE_SIZE)) > 0)
        consume(conn, clear, got);
}

/* Encrypt and send bytes; what the socket does not take is kept. */
static void send_secured(struct conn *conn, const char *data, size_t n)
{
    if (SSL_write(conn->tls, data, n) != (int)n)
        die("SSL_write");
    send_encrypted(conn);
}

#else

static void load_certificate(const char *certificate, const char *key)
{
    fprintf(stderr, "built without TLS: %s and %s are not used\n", certificate, key);
    exit(1);
}

static void begin_tls(struct conn *conn) { (void)conn; }
static void decrypt(struct conn *conn, const char *data, size_t n) { consume(conn, data, n); }
static void send_rest(struct conn *conn) { (void)conn; }
static void send_secured(struct conn *conn, const char *data, size_t n)
{
    (void)conn, (void)data, (void)n;
}

#endif

static void receive(struct conn *conn)
{
    ssize_t n = recv(conn->fd, input, RECEIVE_SIZE, MSG_DONTWAIT);
    if (n <= 0) {
        if (n == 0 || (errno != EAGAIN && errno != EINTR))
            close_conn(conn);
        return;
    }
    if (conn->tls)
        decrypt(conn, input, n);
    else
        consume(conn, input, n);
    if (conn->negotiates && !conn->skip)
        begin_tls(conn);
}

/* 0 when the socket took less than all. */
static int send_all(struct conn *conn, const char *data, size_t n, size_t *sent)
{
    ssize_t taken;
    if (conn->tls) {
        *sent = n;
        send_secured(conn, data, n);
        return conn->rest == NULL;
    }
    taken = send(conn->fd, data, n, MSG_NOSIGNAL | MSG_DONTWAIT);
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
    if (conn->answers > MOST_OKS
        || (!send_all(conn, oks, conn->answers * OK_FRAME, &sent) && !conn->tls)) {
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
        if (conn->fd >= 0 && conn->answers && !conn->rest)
            answer(conn);
        if (conn->subscribed && has_room(conn))
            deliver(conn);
        if (conn->fd < 0) {
            *link = conn->next;
            SSL_free(conn->tls);
            free(conn->rest);
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
    if (argc > 3)
        load_certificate(argv[2], argv[3]);
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
            if (events[i].events & EPOLLOUT) {
                if (conn->rest)
                    send_rest(conn);
                else
                    watch_output(conn, 0);
            }
            if (events[i].events & ~EPOLLOUT)
                receive(conn);
        }
        more = send_to_all();
    }
}
