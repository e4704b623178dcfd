/*
 * What the RoCEv2 codec costs a packet, beside the bare CRC of the same bytes: bench_roce_wire. One thread; the packets
 * of a round are 64, so that the small ones lie in the first cache and those of 4096 bytes in the second, as in a
 * batch.
 */
#include "base/util.h"
#include "roce/wire.h"
#include "roce/wire_icrc.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <isa-l/crc.h>

#define BATCH         64
#define ROUND_BATCHES 16
#define ROUNDS        200

struct job {
    struct wire_icrc_tab tab;
    struct wire_flow flow;
    uint8_t pkt[BATCH][WIRE_PKT_MAX];
    uint8_t payload[BATCH][WIRE_MTU_BYTES_MAX];
    uint32_t payload_len, pkt_bytes, sum;
    struct wire_icrc_run run;
    bool solve;
};

static void bare_crc(struct job *j, unsigned i)
{
    j->sum += crc32_gzip_refl(0, j->pkt[i], j->pkt_bytes);
}

static struct wire_pkt packet(const struct job *j, unsigned i)
{
    return (struct wire_pkt){.opcode = j->payload_len ? WIRE_RC_WRITE_ONLY : WIRE_RC_ACK,
                             .pkey = WIRE_PKEY_DEFAULT,
                             .dest_qp = 0x11,
                             .psn = psn_make(i),
                             .va = 0x7f0000000000 + i,
                             .rkey = 99,
                             .dma_len = j->payload_len,
                             .payload_len = j->payload_len};
}

static void encode(struct job *j, unsigned i)
{
    struct wire_pkt p = packet(j, i);
    struct wire_icrc c;
    int n = wire_encode_head(&p, j->pkt[i], WIRE_HEAD_MAX);

    wire_icrc_run_begin(&c, &j->run, j->pkt[i], (size_t)n);
    if (j->payload_len)
        wire_icrc_add(&c, j->payload[i], j->payload_len);
    wire_encode_tail(j->payload_len, wire_icrc_run_id(&j->run, wire_icrc_end(&c, j->payload_len), (uint16_t)i),
                     j->pkt[i] + n + j->payload_len);
}

static void decode(struct job *j, unsigned i)
{
    struct wire_icrc_ids ids = {.known = !j->solve, .solve = j->solve, .id = (uint16_t)i};
    struct wire_pkt p;

    if (wire_decode(j->pkt[i], j->pkt_bytes, &p) < 0 || wire_icrc_run_verify(&j->run, &ids, j->pkt[i], NULL) < 0)
        abort();
    j->sum += p.psn.v;
}

static void reid(struct job *j, unsigned i)
{
    j->sum += wire_icrc_reid(&j->tab, j->sum, j->pkt_bytes, 0, (uint16_t)i);
}

static uint64_t thread_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * NSEC_PER_SEC + (uint64_t)t.tv_nsec;
}

/* Nanoseconds a packet: the best of many short rounds, so that a busy machine does not show. */
static double measure(struct job *j, void (*step)(struct job *, unsigned))
{
    uint64_t best = UINT64_MAX;

    for (int round = 0; round < ROUNDS; round++) {
        uint64_t start = thread_ns();

        for (unsigned n = 0; n < ROUND_BATCHES; n++)
            for (unsigned i = 0; i < BATCH; i++)
                step(j, i);
        best = min_u64(best, thread_ns() - start);
    }
    return (double)best / (ROUND_BATCHES * BATCH);
}

static void run(struct job *j, uint32_t payload_len)
{
    struct wire_pkt p;
    double bare, enc, dec, solved;

    j->payload_len = payload_len;
    p = packet(j, 0);
    j->pkt_bytes = wire_pkt_bytes(&p);
    wire_icrc_run_init(&j->run, &j->tab, &j->flow, j->pkt_bytes);
    for (unsigned i = 0; i < BATCH; i++) {
        encode(j, i);
        memcpy(j->pkt[i] + wire_op(p.opcode)->head_bytes, j->payload[i], payload_len);
    }
    bare = measure(j, bare_crc);
    enc = measure(j, encode);
    j->solve = false;
    dec = measure(j, decode);
    j->solve = true;
    solved = measure(j, decode);
    printf("%8u %10.1f %10.1f %10.1f %12.1f %10.1f %10.1f %10.1f\n", payload_len, bare, enc, dec, solved,
           measure(j, reid), (double)j->pkt_bytes / bare, (double)payload_len / enc);
}

int main(void)
{
    struct job *j = calloc(1, sizeof *j);
    static const uint32_t sizes[] = {0, 8, 256, 1024, 4096};

    if (!j)
        return 1;
    wire_icrc_tab_init(&j->tab);
    j->flow = (struct wire_flow){.df = true, .src = {10, 0, 0, 1}, .dst = {10, 0, 0, 2}, .dst_port = WIRE_UDP_PORT};
    for (size_t i = 0; i < sizeof j->payload; i++)
        ((uint8_t *)j->payload)[i] = (uint8_t)(i * 7);
    printf("nanoseconds a packet, and GB/s; payload 0 is an ACK\n%8s %10s %10s %10s %12s %10s %10s %10s\n", "payload",
           "bare CRC", "encode", "decode", "decode+solve", "new id", "CRC GB/s", "enc GB/s");
    for (size_t i = 0; i < ARRAY_SIZE(sizes); i++)
        run(j, sizes[i]);
    free(j);
    return 0;
}
