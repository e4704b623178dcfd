/* One end of a test of the verbs interface: a device with a domain, a queue of completions and a registered buffer. */
#ifndef TESTS_VERBS_END_H
#define TESTS_VERBS_END_H

#include <infiniband/verbs.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct vend {
    struct ibv_context *ctx;
    struct ibv_pd *pd;
    struct ibv_comp_channel *channel;
    struct ibv_cq *cq;
    struct ibv_mr *mr;
    uint8_t *buf;
    size_t len;
};

/* What a peer has to know of a queue pair and of a buffer; it goes through pipes. */
struct vaddr {
    union ibv_gid gid;
    uint32_t qpn, psn, rkey;
    uint64_t addr;
};

/* All of these fail the test when a call fails. device NULL: the first. */
void vend_open(struct vend *e, const char *device, size_t len);
void vend_close(struct vend *e);
/* In INIT, with all rights. srq may be NULL. */
struct ibv_qp *vend_qp(struct vend *e, enum ibv_qp_type type, uint32_t depth, struct ibv_srq *srq);
struct vaddr vend_addr(const struct vend *e, const struct ibv_qp *qp, int gid_index);
/* An attribute for RTR toward a peer, with its mask. */
struct ibv_qp_attr vend_rtr(const struct vaddr *to, int gid_index, enum ibv_mtu mtu, int *ret_mask);
/* Of the queue pairs that are connected next: 4.096 us * 2^vend_timeout, seven times. 12 at first. */
extern uint8_t vend_timeout;
/* To RTR and RTS. rnr: retries of receivers that are not ready. */
void vend_connect(struct ibv_qp *qp, const struct vaddr *to, int gid_index, enum ibv_mtu mtu, uint8_t rnr);
/* Two queue pairs of one or two devices with each other. */
void vend_pair(struct vend *a, struct ibv_qp *qa, struct vend *b, struct ibv_qp *qb, int gid_index, uint8_t rnr);
/* One request of one piece of the buffer, signalled: 0 or an errno value. to: RDMA. */
int vend_send(struct vend *e, struct ibv_qp *qp, enum ibv_wr_opcode op, size_t offset, uint32_t len,
              const struct vaddr *to, uint64_t id);
int vend_recv(struct vend *e, struct ibv_qp *qp, size_t offset, uint32_t len, uint64_t id);
/* The next n completions of the end's queue; fails after a minute without one. */
void vend_wait(struct vend *e, int n, struct ibv_wc *ret);
/* One message of 64 bytes from the start of the buffer to its middle, compared. */
void vend_message(struct vend *e, struct ibv_qp *from, struct ibv_qp *to, uint64_t seed);
/* That no completion is there, nor comes for a moment. */
void vend_quiet(struct vend *e);
void vend_fill(struct vend *e, uint64_t seed);
/* In a child: a check that fails ends it, not the test in it. */
void vend_in_child(void);
/* fork() of a peer with a pipe from and one to the other process; in the child 0, after vend_in_child. */
pid_t vend_fork(int *ret_in, int *ret_out);

#endif
