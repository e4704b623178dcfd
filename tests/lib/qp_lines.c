#include "lib/qp_lines.h"

#include "lib/qp_mask.h"

#include <arpa/inet.h>
#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define WORDS_MAX 24

static struct {
    const struct qp_api *api;
    uint8_t *buf;
    size_t size;
    uint32_t lkey, rkey;
    unsigned int gid_index;
    enum uroce_qp_type type;
    uint32_t psn, qkey;
} q;

static char *words[WORDS_MAX];
static int nwords;

static const char *text(const char *key)
{
    size_t n = strlen(key);
    for (int i = 0; i < nwords; i++)
        if (strncmp(words[i], key, n) == 0 && words[i][n] == '=')
            return words[i] + n + 1;
    return NULL;
}

static uint64_t num(const char *key, uint64_t fallback)
{
    const char *s = text(key);
    return s ? strtoull(s, NULL, 0) : fallback;
}

/* Bytes from..from+len of the stream that a seed means: the same on both ends. */
static uint64_t random_word(uint64_t seed, uint64_t i)
{
    uint64_t z = seed * 0xD1342543DE82EF95u + (i + 1) * 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

/* Writes them, or compares; the offset of the first that differs, else len. */
static uint64_t stream(uint8_t *p, uint64_t from, uint64_t len, uint64_t seed, bool write)
{
    uint64_t word = random_word(seed, from / 8);
    for (uint64_t i = 0; i < len; i++) {
        uint64_t at = from + i;
        if (at % 8 == 0)
            word = random_word(seed, at / 8);
        uint8_t byte = (uint8_t)(word >> (8 * (at % 8)));
        if (write)
            p[i] = byte;
        else if (p[i] != byte)
            return i;
    }
    return len;
}

static int range(uint64_t *ret_off, uint64_t *ret_len)
{
    uint64_t off = num("off", 0), len = num("len", 0);
    if (off > q.size || len > q.size - off)
        return -ERANGE;
    *ret_off = off;
    *ret_len = len;
    return 0;
}

static int gid_arg(union uroce_gid *ret)
{
    const char *s = text("gid");
    return s && inet_pton(AF_INET6, s, ret->raw) == 1 ? 0 : -EINVAL;
}

/* The first address of that family; the link's own of IPv6 does not count. */
static int find_gid(bool v6, union uroce_gid *ret)
{
    static const uint8_t mapped[12] = {[10] = 0xff, [11] = 0xff};
    for (unsigned int i = 0; i < 64; i++) {
        if (q.api->gid(i, ret))
            continue;
        bool v4 = memcmp(ret->raw, mapped, sizeof mapped) == 0;
        if (v6 ? !v4 && ret->raw[0] == 0xfd : v4) {
            q.gid_index = i;
            return 0;
        }
    }
    return -EADDRNOTAVAIL;
}

static int do_new(void)
{
    const char *t = text("type");
    q.type = t && strcmp(t, "uc") == 0 ? UROCE_QPT_UC : t && strcmp(t, "ud") == 0 ? UROCE_QPT_UD : UROCE_QPT_RC;
    q.psn = (uint32_t)num("psn", 0);
    q.qkey = (uint32_t)num("qkey", 1);
    union uroce_gid gid;
    uint32_t qpn = 0;
    int r = find_gid(num("family", 4) == 6, &gid);
    r = r ? r : q.api->create(q.type, (uint32_t)num("depth", 64), &qpn);
    if (r)
        return r;
    bool ud = q.type == UROCE_QPT_UD;
    struct uroce_qp_attr a = {
        .qp_state = UROCE_QPS_INIT, .port_num = 1, .qkey = q.qkey, .qp_access_flags = (unsigned int)num("access", 15)};
    r = q.api->modify(&a, qp_mask(q.type, UROCE_QPS_INIT));
    if (!r && ud) {
        a = (struct uroce_qp_attr){.qp_state = UROCE_QPS_RTR};
        r = q.api->modify(&a, qp_mask(q.type, UROCE_QPS_RTR));
        a = (struct uroce_qp_attr){.qp_state = UROCE_QPS_RTS, .sq_psn = q.psn};
        r = r ? r : q.api->modify(&a, qp_mask(q.type, UROCE_QPS_RTS));
    }
    if (r)
        return r;
    char name[INET6_ADDRSTRLEN];
    inet_ntop(AF_INET6, gid.raw, name, sizeof name);
    printf("ok qpn=%" PRIu32 " psn=%" PRIu32 " rkey=%" PRIu32 " addr=%" PRIu64 " gid=%s\n", qpn, q.psn, q.rkey,
           (uint64_t)(uintptr_t)q.buf, name);
    return 1;
}

static int do_connect(void)
{
    uint64_t mtu = num("mtu", 1024);
    struct uroce_qp_attr a = {
        .qp_state = UROCE_QPS_RTR,
        .path_mtu = mtu == 256    ? UROCE_MTU_256
                    : mtu == 512  ? UROCE_MTU_512
                    : mtu == 1024 ? UROCE_MTU_1024
                    : mtu == 2048 ? UROCE_MTU_2048
                                  : UROCE_MTU_4096,
        .dest_qp_num = (uint32_t)num("qpn", 0),
        .rq_psn = (uint32_t)num("psn", 0),
        .max_dest_rd_atomic = (uint8_t)num("rd", 16),
        .min_rnr_timer = (uint8_t)num("minrnr", 12),
        .ah_attr = {.sgid_index = (uint8_t)q.gid_index, .hop_limit = 64},
    };
    int r = gid_arg(&a.ah_attr.dgid);
    r = r ? r : q.api->modify(&a, qp_mask(q.type, UROCE_QPS_RTR));
    a = (struct uroce_qp_attr){
        .qp_state = UROCE_QPS_RTS,
        .sq_psn = q.psn,
        .timeout = (uint8_t)num("timeout", 14),
        .retry_cnt = (uint8_t)num("retry", 7),
        .rnr_retry = (uint8_t)num("rnr", 7),
        .max_rd_atomic = (uint8_t)num("rd", 16),
    };
    return r ? r : q.api->modify(&a, qp_mask(q.type, UROCE_QPS_RTS));
}

static int do_recv(void)
{
    uint64_t off = 0, len = 0;
    int r = range(&off, &len);
    struct uroce_sge sge = {(uint64_t)(uintptr_t)(q.buf + off), (uint32_t)len, q.lkey};
    struct uroce_recv_wr wr = {.wr_id = num("id", 0), .sg_list = &sge, .num_sge = len ? 1 : 0};
    for (uint64_t n = num("n", 1); n && !r; n--)
        r = q.api->recv(&wr);
    return r;
}

static enum uroce_wr_opcode opcode_of(const char *verb)
{
    bool imm = text("imm");
    switch (verb[0]) {
    case 's':
        return imm ? UROCE_WR_SEND_WITH_IMM : text("inv") ? UROCE_WR_SEND_WITH_INV : UROCE_WR_SEND;
    case 'w':
        return imm ? UROCE_WR_RDMA_WRITE_WITH_IMM : UROCE_WR_RDMA_WRITE;
    case 'r':
        return UROCE_WR_RDMA_READ;
    case 'c':
        return UROCE_WR_ATOMIC_CMP_AND_SWP;
    default:
        return UROCE_WR_ATOMIC_FETCH_AND_ADD;
    }
}

static int do_post(const char *verb)
{
    uint64_t off = 0, len = 0;
    int r = range(&off, &len);
    struct uroce_send_wr wr = {
        .wr_id = num("id", 0),
        .opcode = opcode_of(verb),
        .send_flags = UROCE_SEND_SIGNALED | (text("solicited") ? (unsigned int)UROCE_SEND_SOLICITED : 0u),
    };
    bool atomic = wr.opcode == UROCE_WR_ATOMIC_CMP_AND_SWP || wr.opcode == UROCE_WR_ATOMIC_FETCH_AND_ADD;
    if (atomic && !r) {
        len = 8;
        r = off + 8 > q.size ? -ERANGE : 0;
    }
    struct uroce_sge sge = {(uint64_t)(uintptr_t)(q.buf + off), (uint32_t)len, q.lkey};
    wr.sg_list = &sge;
    wr.num_sge = len ? 1 : 0;
    if (text("imm"))
        wr.imm_data = htonl((uint32_t)num("imm", 0));
    else if (text("inv"))
        wr.invalidate_rkey = (uint32_t)num("inv", 0);
    struct uroce_ah_attr to = {.sgid_index = (uint8_t)q.gid_index, .hop_limit = 64};
    if (q.type == UROCE_QPT_UD) {
        r = r ? r : gid_arg(&to.dgid);
        wr.wr.ud.remote_qpn = (uint32_t)num("qpn", 0);
        wr.wr.ud.remote_qkey = (uint32_t)num("qkey", q.qkey);
    } else if (atomic) {
        wr.wr.atomic.remote_addr = num("va", 0);
        wr.wr.atomic.rkey = (uint32_t)num("rkey", 0);
        wr.wr.atomic.compare_add = verb[0] == 'c' ? num("compare", 0) : num("add", 0);
        wr.wr.atomic.swap = num("swap", 0);
    } else {
        wr.wr.rdma.remote_addr = num("va", 0);
        wr.wr.rdma.rkey = (uint32_t)num("rkey", 0);
    }
    return r ? r : q.api->send(&wr, q.type == UROCE_QPT_UD ? &to : NULL);
}

static int do_window(void)
{
    uint64_t off = 0, len = 0;
    uint32_t rkey = 0;
    int r = range(&off, &len);
    r = r ? r : q.api->window(q.buf + off, len, &rkey);
    if (r)
        return r;
    printf("ok rkey=%" PRIu32 "\n", rkey);
    return 1;
}

static double now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

static const char *op_name(enum uroce_wc_opcode op)
{
    switch (op) {
    case UROCE_WC_SEND:
        return "send";
    case UROCE_WC_RDMA_WRITE:
        return "write";
    case UROCE_WC_RDMA_READ:
        return "read";
    case UROCE_WC_COMP_SWAP:
        return "cas";
    case UROCE_WC_FETCH_ADD:
        return "faa";
    case UROCE_WC_BIND_MW:
        return "bind";
    case UROCE_WC_RECV:
        return "recv";
    case UROCE_WC_RECV_RDMA_WITH_IMM:
        return "recv_write";
    default:
        return "other";
    }
}

static int do_poll(void)
{
    double end = now_ms() + (double)num("ms", 10000);
    struct uroce_wc wc;
    int n;
    while ((n = q.api->poll(&wc)) == 0 && now_ms() < end)
        usleep(100);
    if (n < 0)
        return n;
    if (n == 0) {
        printf("ok none\n");
        return 1;
    }
    printf("ok status=%d id=%" PRIu64, (int)wc.status, wc.wr_id);
    if (wc.status == UROCE_WC_SUCCESS) {
        printf(" op=%s len=%" PRIu32, op_name(wc.opcode), wc.byte_len);
        if (wc.wc_flags & UROCE_WC_WITH_IMM)
            printf(" imm=%" PRIu32, ntohl(wc.imm_data));
        if (wc.wc_flags & UROCE_WC_WITH_INV)
            printf(" inv=%" PRIu32, wc.invalidated_rkey);
        if (q.type == UROCE_QPT_UD && (wc.opcode & UROCE_WC_RECV))
            printf(" src=%" PRIu32, wc.src_qp);
    }
    printf("\n");
    return 1;
}

static int do_check(uint64_t off, uint64_t len)
{
    uint64_t around = num("around", 0), was = num("was", 0);
    if (around > off || around > q.size - off - len)
        return -ERANGE;
    uint64_t at = stream(q.buf + off, 0, len, num("seed", 0), false);
    if (at < len)
        printf("ok differs=%" PRIu64 "\n", at);
    else if (stream(q.buf + off - around, 0, around, was, false) < around ||
             stream(q.buf + off + len, around + len, around, was, false) < around)
        printf("ok overrun\n");
    else
        printf("ok same\n");
    return 1;
}

static int do_bytes(const char *verb)
{
    uint64_t off = 0, len = 0;
    int r = range(&off, &len);
    if (r)
        return r;
    if (verb[0] == 'c')
        return do_check(off, len);
    if (verb[0] == 'f') {
        stream(q.buf + off, 0, len, num("seed", 0), true);
        return 0;
    }
    printf("ok ");
    for (uint64_t i = 0; i < len; i++)
        printf("%02x", q.buf[off + i]);
    printf("\n");
    return 1;
}

static int do_word(bool set)
{
    uint64_t off = num("off", 0), v = num("value", 0);
    if (q.size < 8 || off > q.size - 8)
        return -ERANGE;
    if (set) {
        memcpy(q.buf + off, &v, 8);
        return 0;
    }
    memcpy(&v, q.buf + off, 8);
    printf("ok value=%" PRIu64 "\n", v);
    return 1;
}

static int do_state(void)
{
    enum uroce_qp_state s;
    int r = q.api->state(&s);
    if (r)
        return r;
    printf("ok state=%d\n", (int)s);
    return 1;
}

static int do_counters(void)
{
    struct uroce_counters c;
    int r = q.api->counters ? q.api->counters(&c) : -EOPNOTSUPP;
    if (r)
        return r;
    printf("ok tx_pkts=%" PRIu64 " rx_pkts=%" PRIu64 " retransmits=%" PRIu64 " timeouts=%" PRIu64 " nak_seq_rx=%" PRIu64
           " nak_seq_tx=%" PRIu64 " rnr_nak_rx=%" PRIu64 " rnr_nak_tx=%" PRIu64 " out_of_order=%" PRIu64
           " duplicates=%" PRIu64 " selective_acks_rx=%" PRIu64 " drop_icrc=%" PRIu64 " drop_malformed=%" PRIu64
           " icrc_full=%" PRIu64 " icrc_solved=%" PRIu64 "\n",
           c.tx_pkts, c.rx_pkts, c.retransmits, c.timeouts, c.nak_seq_rx, c.nak_seq_tx, c.rnr_nak_rx, c.rnr_nak_tx,
           c.out_of_order, c.duplicates, c.selective_acks_rx, c.drop_icrc, c.drop_malformed, c.icrc_full,
           c.icrc_solved);
    return 1;
}

/* 0: done, to be answered "ok"; 1: has answered; -errno. */
static int obey(const char *verb)
{
    static const char posts[][6] = {"send", "write", "read", "cas", "faa"};
    for (size_t i = 0; i < sizeof posts / sizeof *posts; i++)
        if (strcmp(verb, posts[i]) == 0)
            return do_post(verb);
    if (strcmp(verb, "new") == 0)
        return do_new();
    if (strcmp(verb, "connect") == 0)
        return do_connect();
    if (strcmp(verb, "recv") == 0)
        return do_recv();
    if (strcmp(verb, "window") == 0)
        return do_window();
    if (strcmp(verb, "poll") == 0)
        return do_poll();
    if (strcmp(verb, "fill") == 0 || strcmp(verb, "check") == 0 || strcmp(verb, "dump") == 0)
        return do_bytes(verb);
    if (strcmp(verb, "set") == 0 || strcmp(verb, "get") == 0)
        return do_word(verb[0] == 's');
    if (strcmp(verb, "state") == 0)
        return do_state();
    if (strcmp(verb, "counters") == 0)
        return do_counters();
    return -ENOSYS;
}

int qp_lines_run(const struct qp_api *api, size_t buffer_bytes)
{
    q.api = api;
    q.size = buffer_bytes;
    if (posix_memalign((void **)&q.buf, 4096, buffer_bytes))
        return 1;
    memset(q.buf, 0, buffer_bytes);
    setvbuf(stdout, NULL, _IOLBF, 0);
    int r = api->open(q.buf, q.size, &q.lkey, &q.rkey);
    if (r) {
        printf("err %d %s (open)\n", -r, strerror(-r));
        return 1;
    }
    printf("ok ready\n");
    char line[1024];
    while (fgets(line, sizeof line, stdin)) {
        char *save = NULL, *verb = strtok_r(line, " \n", &save), *w;
        nwords = 0;
        while (nwords < WORDS_MAX && (w = strtok_r(NULL, " \n", &save)))
            words[nwords++] = w;
        r = verb ? obey(verb) : -EINVAL;
        if (r <= 0)
            printf(r ? "err %d %s\n" : "ok\n", -r, strerror(-r));
    }
    return 0;
}
