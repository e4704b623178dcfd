/*
 * One queue pair, driven by lines on stdin: the same dialect for uroce (uroce_qp) and for the kernel's soft-RoCE in a
 * guest (rxe_qp), so that a test drives both ends alike. Every line is answered by one line: "ok ..." or "err ERRNO".
 *
 *   new [type=rc|uc|ud] [family=4|6] [depth=64] [psn=0] [qkey=1] [access=15]
 *                         a new queue pair in INIT (UD: RTS) in place of the last:  ok qpn= psn= rkey= addr= gid=
 *   connect qpn= psn= gid= [mtu=1024] [timeout=14] [retry=7] [rnr=7] [minrnr=12] [rd=16]      to RTS
 *   recv off= len= [n=1] [id=]
 *   send off= len= [imm=] [inv=] [solicited=1] [id=]       UD also: gid= qpn= qkey=
 *   write off= len= va= rkey= [imm=]    read off= len= va= rkey=
 *   cas off= va= rkey= compare= swap=   faa off= va= rkey= add=
 *   window off= len=      binds a memory window of type 2, for WRITEs:  ok rkey=   (and a completion, op=bind)
 *   poll [ms=10000]       ok op= status= len= id= [imm=] [inv=] [src=]     or   ok none
 *   fill off= len= seed=  random bytes
 *   check off= len= seed= [around=N was=SEED]      ok same, or: ok differs=OFFSET; ok overrun: the N bytes before and
 *                         behind are not what `fill off=off-N len=len+2N seed=was` left there
 *   set off= value=       get off=        64 bits    dump off= len=    in hex
 *   state                 ok state=       0 RESET .. 6 ERR
 *   counters              ok name=value ..., where there are any
 */
#ifndef TESTS_QP_LINES_H
#define TESTS_QP_LINES_H

#include "uroce/types.h"

/* What an end has to offer; the types are uroce's, whose numbers are those of all verbs. 0 or -errno. */
struct qp_api {
    int (*open)(void *buf, size_t len, uint32_t *ret_lkey, uint32_t *ret_rkey);
    int (*gid)(unsigned int index, union uroce_gid *ret); /* -ENOENT past the last */
    int (*create)(enum uroce_qp_type type, uint32_t depth, uint32_t *ret_qpn);
    int (*modify)(const struct uroce_qp_attr *attr, unsigned int mask);
    int (*state)(enum uroce_qp_state *ret);
    int (*send)(const struct uroce_send_wr *wr, const struct uroce_ah_attr *to); /* to: UD */
    int (*recv)(const struct uroce_recv_wr *wr);
    int (*window)(void *addr, size_t len, uint32_t *ret_rkey);
    int (*poll)(struct uroce_wc *ret);           /* 0: none, 1 */
    int (*counters)(struct uroce_counters *ret); /* may be NULL */
};

int qp_lines_run(const struct qp_api *api, size_t buffer_bytes);

#endif
