#include "export_client.h"

#include "base/rng.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cmocka.h>

int dial(void)
{
    struct sockaddr_un sa = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

    memcpy(sa.sun_path, export_path, strlen(export_path) + 1);
    assert_int_equal(connect(fd, (struct sockaddr *)&sa, sizeof sa), 0);
    return fd;
}

/* The first two messages. False: it did not want to talk. */
bool greet(const struct raw *c, int fd, struct export_talk *ret)
{
    struct export_hello h = {.magic = put_le32(EXPORT_MAGIC)};
    struct export_answer a;
    uint8_t mac[EXPORT_MAC];

    memcpy(ret->session, c->session, sizeof ret->session);
    rng_secret(ret->client_nonce, sizeof ret->client_nonce);
    memcpy(h.session, ret->session, sizeof h.session);
    memcpy(h.nonce, ret->client_nonce, sizeof h.nonce);
    assert_int_equal(send(fd, &h, sizeof h, MSG_NOSIGNAL), sizeof h);
    if (recv(fd, &a, sizeof a, 0) != sizeof a || get_le32(a.status))
        return false;
    memcpy(ret->daemon_nonce, a.nonce, sizeof a.nonce);
    assert_int_equal(export_mac(c->data_key, true, ret, get_le32(a.uid), mac), 0);
    assert_memory_equal(mac, a.mac, sizeof mac); /* it knows the session's key */
    assert_int_equal(get_le32(a.uid), geteuid());
    return true;
}

void send_fds(int fd, const void *msg, size_t len, const int *fds, size_t n)
{
    char room[CMSG_SPACE(8 * sizeof(int))] __attribute__((aligned(8))) = {0};
    struct iovec iov = {(void *)(uintptr_t)msg, len};
    struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1};

    if (n) {
        m.msg_control = room;
        m.msg_controllen = CMSG_SPACE(n * sizeof(int));
        *CMSG_FIRSTHDR(&m) =
            (struct cmsghdr){.cmsg_len = CMSG_LEN(n * sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
        memcpy(CMSG_DATA(CMSG_FIRSTHDR(&m)), fds, n * sizeof(int));
    }
    assert_int_equal(sendmsg(fd, &m, MSG_NOSIGNAL), len);
}

/* Status, or -EPIPE: the connection ended without one. */
int answer(int fd, uint64_t *ret_id)
{
    struct export_taken t;

    if (recv(fd, &t, sizeof t, 0) != sizeof t)
        return -EPIPE;
    *ret_id = get_le64(t.id);
    return (int32_t)get_le32(t.status);
}

/* Hands over any descriptor as memory of so many bytes. */
int hand_over(const struct raw *c, int memfd, uint64_t bytes, int *ret_conn, uint64_t *ret_id)
{
    struct export_give g = {.bytes = put_le64(bytes)};
    struct export_talk t;
    int fd = dial(), r;

    if (!greet(c, fd, &t)) {
        close(fd);
        return -ECONNREFUSED;
    }
    assert_int_equal(export_mac(c->data_key, false, &t, bytes, g.mac), 0);
    send_fds(fd, &g, sizeof g, &memfd, 1);
    r = answer(fd, ret_id);
    if (r < 0)
        close(fd);
    else
        *ret_conn = fd;
    return r;
}

void give(const struct raw *c, size_t bytes, struct given *ret)
{
    void *p;

    assert_int_equal(export_memory_new(bytes, &p, &ret->memfd), 0);
    ret->mem = p;
    memset(p, 'g', bytes);
    assert_int_equal(hand_over(c, ret->memfd, bytes, &ret->conn, &ret->id), 0);
}

bool ended(int fd, int ms)
{
    char c;

    return poll(&(struct pollfd){.fd = fd, .events = POLLIN}, 1, ms) == 1 && recv(fd, &c, 1, 0) == 0;
}

void take_back(struct given *g, size_t bytes)
{
    shutdown(g->conn, SHUT_WR);
    assert_true(ended(g->conn, 10000));
    forget(g, bytes);
}

void forget(struct given *g, size_t bytes)
{
    close(g->conn);
    close(g->memfd);
    munmap(g->mem, bytes);
}

struct dp_request io(uint8_t opcode, uint64_t offset, uint32_t len, const struct given *g, uint64_t at)
{
    return (struct dp_request){.opcode = opcode,
                               .flags = DP_F_EXPORTED,
                               .ino = ino,
                               .offset = offset,
                               .length = len,
                               .nsegs = 1,
                               .seg = {{at, g->id, len}}};
}

int sealed(size_t bytes, int seals, unsigned flags)
{
    int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING | flags);

    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, (off_t)bytes), 0);
    assert_int_equal(fcntl(fd, F_ADD_SEALS, seals), 0);
    return fd;
}
