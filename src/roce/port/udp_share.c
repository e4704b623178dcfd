/* One address for several processes: a group of sockets, chosen among by the receiver's QPN[23:16]. */
#include "udp_priv.h"

#include <errno.h>
#include <linux/filter.h>

/*
 * The program sees the UDP payload: word 4 is the BTH's destination QPN (below a reserved byte). It returns an index
 * into the group, which is the order of binding; numbers beyond the group go to socket 0. Segments of one offloaded
 * send are looked up once: a sender never mixes slots in a run.
 */
static int steer(int fd, uint32_t n)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 4),
        BPF_STMT(BPF_ALU | BPF_AND | BPF_K, 0xffffff),
        BPF_STMT(BPF_ALU | BPF_RSH | BPF_K, 16),
        BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, n, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, 0),
        BPF_STMT(BPF_RET | BPF_A, 0),
    };
    struct sock_fprog prog = {.len = sizeof code / sizeof *code, .filter = code};
    return setsockopt(fd, SOL_SOCKET, SO_ATTACH_REUSEPORT_CBPF, &prog, sizeof prog) ? -errno : 0;
}

int port_udp_share(const struct port_addr *local, int n, int *ret_fds)
{
    struct port_addr a = *local;
    if (!a.udp_port)
        a.udp_port = PORT_UDP;
    /* Without SO_REUSEPORT first: joining somebody else's group would take packets from it. */
    int err = 0, made = 0, fd = udp_socket(&a, false, false);
    if (fd < 0)
        return fd;
    close(fd);
    for (; made < n; made++) {
        fd = udp_socket(&a, true, false);
        if (fd < 0) {
            err = fd;
            break;
        }
        ret_fds[made] = fd;
        if (made == 0 && (err = steer(fd, (uint32_t)n))) {
            made++;
            break;
        }
    }
    while (err && made > 0)
        close(ret_fds[--made]);
    return err;
}
