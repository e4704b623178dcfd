#include "pcapng.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define BUF_BYTES     (256u << 10)
#define SNAP_BYTES    (128u << 10) /* of one packet */
#define SECTION       0x0a0d0d0au
#define MAGIC         0x1a2b3c4du
#define INTERFACE     1u
#define STATISTICS    5u
#define PACKET        6u
#define LINK_ETHERNET 1u
#define OPT_END       0u
#define OPT_IF_NAME   2u
#define OPT_TSRESOL   9u
#define OPT_EPB_FLAGS 2u
#define OPT_ISB_RECV  4u
#define OPT_ISB_DROP  5u
#define EPB_INBOUND   1u
#define EPB_OUTBOUND  2u

struct pcapng {
    int fd;
    bool pipe; /* may be full: never waited for */
    uint64_t total;
    size_t used;
    uint8_t buf[BUF_BYTES];
};

static void put(struct pcapng *f, const void *p, size_t n)
{
    memcpy(f->buf + f->used, p, n);
    f->used += n;
}

static void put32(struct pcapng *f, uint32_t v)
{
    put(f, &v, sizeof v);
}

static void put_option(struct pcapng *f, uint16_t code, const void *value, uint16_t len)
{
    put(f, &code, sizeof code);
    put(f, &len, sizeof len);
    put(f, value, len);
    put(f, "\0\0\0", -(size_t)len & 3);
}

static size_t begin(struct pcapng *f, uint32_t type)
{
    size_t at = f->used;
    put32(f, type);
    put32(f, 0);
    return at;
}

/* The length of a block stands at both of its ends. */
static void end(struct pcapng *f, size_t at)
{
    uint32_t len = (uint32_t)(f->used - at + 4);
    put32(f, len);
    memcpy(f->buf + at + 4, &len, sizeof len);
}

int pcapng_flush(struct pcapng *f)
{
    size_t done = 0;
    int err = 0;
    while (done < f->used && !err) {
        struct pollfd p = {f->fd, POLLOUT, 0};
        size_t n = f->used - done;
        if (f->pipe && poll(&p, 1, 0) <= 0) {
            err = -EAGAIN;
            break;
        }
        /* A pipe that is writable takes as much without waiting. */
        ssize_t w = write(f->fd, f->buf + done, f->pipe && n > 4096 ? 4096 : n);
        if (w < 0 && errno != EINTR)
            err = errno ? -errno : -EIO;
        if (w > 0)
            done += (size_t)w;
    }
    memmove(f->buf, f->buf + done, f->used - done);
    f->used -= done;
    return err;
}

static void put_head(struct pcapng *f, const char *interface)
{
    uint8_t nanoseconds = 9;
    uint64_t unknown = UINT64_MAX;
    size_t at = begin(f, SECTION);
    put32(f, MAGIC);
    put(f, (uint16_t[2]){1, 0}, 4);
    put(f, &unknown, sizeof unknown);
    end(f, at);
    at = begin(f, INTERFACE);
    put(f, (uint16_t[2]){LINK_ETHERNET, 0}, 4);
    put32(f, SNAP_BYTES);
    if (interface && strlen(interface) < 256)
        put_option(f, OPT_IF_NAME, interface, (uint16_t)strlen(interface));
    put_option(f, OPT_TSRESOL, &nanoseconds, 1);
    put_option(f, OPT_END, "", 0);
    end(f, at);
    f->total = f->used;
}

/* Emptied only when it is ours: the lock lasts as long as the descriptor. */
static int open_file(const char *path, bool append, struct stat *ret)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC | (append ? O_APPEND : 0), 0600), err = 0;
    if (fd < 0 || fstat(fd, ret))
        err = -errno;
    else if (S_ISREG(ret->st_mode) && flock(fd, LOCK_EX | LOCK_NB))
        err = errno == EWOULDBLOCK ? -EBUSY : 0; /* a file system without locks */
    if (!err && S_ISREG(ret->st_mode) && !append && ftruncate(fd, 0))
        err = -errno;
    if (!err)
        return fd;
    if (fd >= 0)
        close(fd);
    return err;
}

int pcapng_create(const char *path, bool append, const char *interface, struct pcapng **ret)
{
    struct stat st;
    struct pcapng *f = calloc(1, sizeof *f);
    if (!f)
        return -ENOMEM;
    if (strcmp(path, "-") == 0) {
        f->fd = fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3);
        if (f->fd < 0 || fstat(f->fd, &st)) {
            int err = -errno;
            if (f->fd >= 0)
                close(f->fd);
            f->fd = err;
        }
    } else {
        f->fd = open_file(path, append, &st);
    }
    if (f->fd < 0) {
        int err = f->fd;
        free(f);
        return err;
    }
    f->pipe = !S_ISREG(st.st_mode);
    put_head(f, interface);
    *ret = f;
    return 0;
}

int pcapng_packet(struct pcapng *f, uint64_t time_ns, bool outgoing, const void *head, size_t head_len,
                  const void *data, size_t data_len, size_t orig_len)
{
    uint32_t flags = outgoing ? EPB_OUTBOUND : EPB_INBOUND;
    if (head_len + data_len > SNAP_BYTES)
        data_len = SNAP_BYTES - head_len;
    if (f->used + head_len + data_len + 64 > BUF_BYTES) {
        int err = pcapng_flush(f);
        if (f->used + head_len + data_len + 64 > BUF_BYTES)
            return err ? err : -EAGAIN;
        if (err && err != -EAGAIN)
            return err;
    }
    size_t at = begin(f, PACKET);
    put32(f, 0);
    put32(f, (uint32_t)(time_ns >> 32));
    put32(f, (uint32_t)time_ns);
    put32(f, (uint32_t)(head_len + data_len));
    put32(f, (uint32_t)orig_len);
    put(f, head, head_len);
    if (data_len)
        put(f, data, data_len);
    put(f, "\0\0\0", -(head_len + data_len) & 3);
    put_option(f, OPT_EPB_FLAGS, &flags, sizeof flags);
    put_option(f, OPT_END, "", 0);
    end(f, at);
    f->total += f->used - at;
    return 0;
}

uint64_t pcapng_bytes(const struct pcapng *f)
{
    return f->total;
}

void pcapng_close(struct pcapng *f, uint64_t packets, uint64_t missed, uint64_t time_ns)
{
    if (!f)
        return;
    uint64_t all = packets + missed;
    pcapng_flush(f);
    if (f->used + 128 < BUF_BYTES) {
        size_t at = begin(f, STATISTICS);
        put32(f, 0);
        put32(f, (uint32_t)(time_ns >> 32));
        put32(f, (uint32_t)time_ns);
        put_option(f, OPT_ISB_RECV, &all, sizeof all);
        put_option(f, OPT_ISB_DROP, &missed, sizeof missed);
        put_option(f, OPT_END, "", 0);
        end(f, at);
        pcapng_flush(f);
    }
    close(f->fd);
    free(f);
}
