/*
 * The layouts that programs were compiled with (LP64; rdma-core 44): they do not change. The numbers are those of
 * x86-64, whose mutex has 40 bytes; on aarch64 it has 48.
 */
#include "verbs_priv.h"

#if defined(__LP64__)
#define MUTEX           (sizeof(pthread_mutex_t) - 40)
#define SIZE(t, n)      _Static_assert(sizeof(struct t) == (n), "the size of struct " #t)
#define AT_LEAST(t, n)  _Static_assert(sizeof(struct t) >= (n), "the size of struct " #t)
#define OFFSET(t, m, n) _Static_assert(offsetof(struct t, m) == (n), "where " #m " lies in struct " #t)

SIZE(ibv_device, 664);
OFFSET(ibv_device, name, 24);
OFFSET(ibv_device, dev_name, 88);
OFFSET(ibv_device, dev_path, 152);
OFFSET(ibv_device, ibdev_path, 408);
OFFSET(vb_device, zero, sizeof(struct ibv_device));

SIZE(ibv_context, 328 + MUTEX);
OFFSET(ibv_context, ops, 8);
OFFSET(ibv_context, ops.alloc_mw, 8 + 56);
OFFSET(ibv_context, ops.poll_cq, 8 + 88);
OFFSET(ibv_context, ops.req_notify_cq, 8 + 96);
OFFSET(ibv_context, ops.post_srq_recv, 8 + 160);
OFFSET(ibv_context, ops.post_send, 8 + 200);
OFFSET(ibv_context, ops.post_recv, 8 + 208);
OFFSET(ibv_context, cmd_fd, 264);
OFFSET(ibv_context, async_fd, 268);
OFFSET(ibv_context, num_comp_vectors, 272);
OFFSET(ibv_context, abi_compat, 320 + MUTEX);

/* It grows at its beginning: the end is what counts. */
AT_LEAST(verbs_context, 648 + MUTEX);
_Static_assert(sizeof(struct verbs_context) - offsetof(struct verbs_context, sz) == 8 + 328 + MUTEX,
               "sz and context are last");
_Static_assert(sizeof(struct verbs_context) - offsetof(struct verbs_context, query_port) == 648 + MUTEX, "query_port");

SIZE(ibv_pd, 16);
SIZE(ibv_mr, 48);
OFFSET(ibv_mr, lkey, 36);
OFFSET(ibv_mr, rkey, 40);
SIZE(ibv_mw, 32);
SIZE(ibv_ah, 24);
SIZE(ibv_comp_channel, 16);
SIZE(ibv_cq, 128 + MUTEX);
AT_LEAST(ibv_cq_ex, 288 + MUTEX);
OFFSET(ibv_cq_ex, start_poll, 144 + MUTEX);
SIZE(ibv_srq, 128 + MUTEX);
SIZE(ibv_qp, 160 + MUTEX);
OFFSET(ibv_qp, qp_num, 52);
OFFSET(ibv_qp, state, 56);
AT_LEAST(ibv_qp_ex, 352 + MUTEX);
OFFSET(ibv_qp_ex, wr_id, 168 + MUTEX);
OFFSET(ibv_qp_ex, wr_atomic_cmp_swp, 184 + MUTEX);
SIZE(ibv_wc, 48);
SIZE(ibv_send_wr, 128);
SIZE(ibv_recv_wr, 32);
SIZE(ibv_sge, 16);
SIZE(ibv_ah_attr, 32);
SIZE(ibv_qp_attr, 144);
SIZE(ibv_qp_init_attr, 64);
AT_LEAST(ibv_qp_init_attr_ex, 136);
SIZE(ibv_device_attr, 232);
AT_LEAST(ibv_device_attr_ex, 400);
AT_LEAST(ibv_port_attr, 52);
OFFSET(ibv_port_attr, port_cap_flags2, 48);
AT_LEAST(ibv_gid_entry, 32);
SIZE(ibv_async_event, 16);
SIZE(ibv_dm, 32);
#endif
