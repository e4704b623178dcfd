/* Messages between a device and the holder. */
#include "roce/device_holder.h"

#include "base/util.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

socklen_t holder_name(uid_t uid, bool system, struct sockaddr_un *ret)
{
    memset(ret, 0, sizeof *ret);
    ret->sun_family = AF_UNIX;
    int n = system ? snprintf(ret->sun_path + 1, sizeof ret->sun_path - 1, "uroce-holder")
                   : snprintf(ret->sun_path + 1, sizeof ret->sun_path - 1, "uroce-holder-%u", (unsigned)uid);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
}

int holder_peer(int sock, uid_t *ret_uid, pid_t *ret_pid)
{
    struct ucred c;
    socklen_t len = sizeof c;
    if (getsockopt(sock, SOL_SOCKET, SO_PEERCRED, &c, &len))
        return -errno;
    *ret_uid = c.uid;
    if (ret_pid)
        *ret_pid = c.pid;
    return 0;
}

union fd_space {
    struct cmsghdr align;
    char space[CMSG_SPACE(sizeof(int))];
};

int holder_send(int sock, const struct holder_msg *m, int fd)
{
    struct iovec iov = {.iov_base = (void *)(uintptr_t)m, .iov_len = sizeof *m};
    struct msghdr h = {.msg_iov = &iov, .msg_iovlen = 1};
    union fd_space c;
    if (fd >= 0) {
        memset(&c, 0, sizeof c);
        h.msg_control = &c;
        h.msg_controllen = sizeof c.space;
        c.align.cmsg_level = SOL_SOCKET;
        c.align.cmsg_type = SCM_RIGHTS;
        c.align.cmsg_len = CMSG_LEN(sizeof fd);
        memcpy(CMSG_DATA(&c.align), &fd, sizeof fd);
    }
    return sendmsg(sock, &h, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)sizeof *m ? 0 : -errno;
}

int holder_recv(int sock, int flags, struct holder_msg *ret, int *ret_fd)
{
    struct iovec iov = {.iov_base = ret, .iov_len = sizeof *ret};
    union fd_space c;
    struct msghdr h = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = &c, .msg_controllen = sizeof c.space};
    ssize_t n;
    *ret_fd = -1;
    do
        n = recvmsg(sock, &h, flags | MSG_CMSG_CLOEXEC);
    while (n < 0 && errno == EINTR);
    if (n < 0)
        return -errno;
    for (struct cmsghdr *m = CMSG_FIRSTHDR(&h); m; m = CMSG_NXTHDR(&h, m))
        if (m->cmsg_level == SOL_SOCKET && m->cmsg_type == SCM_RIGHTS && m->cmsg_len == CMSG_LEN(sizeof(int)))
            memcpy(ret_fd, CMSG_DATA(m), sizeof(int));
    if (n == 0)
        return -ENOTCONN;
    if (n != (ssize_t)sizeof *ret || ret->magic != HOLDER_MAGIC || ret->len > HOLDER_PACKET_MAX) {
        if (*ret_fd >= 0)
            close(*ret_fd);
        *ret_fd = -1;
        return -EPROTO;
    }
    ret->text[HOLDER_TEXT - 1] = '\0';
    return 0;
}
