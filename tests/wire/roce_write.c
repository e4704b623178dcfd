/*
 * Writes random packets of every opcode, and a hello, for a judge that we did not write: roce_write PCAP TEXT. TEXT has
 * a line a packet: what each field must be found to be.
 */
#include "roce_frames.h"

#include "base/util.h"
#include "roce/wire_mad.h"
#include "../lib/seed.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ROUNDS 8

static void print_hex(FILE *f, const char *key, const uint8_t *p, size_t n)
{
    fprintf(f, " %s=", key);
    for (size_t i = 0; i < n; i++)
        fprintf(f, "%02x", p[i]);
}

static void print_packet(FILE *f, const struct roce_frame *fr, const struct wire_pkt *p)
{
    const struct wire_op *op = wire_op(p->opcode);

    fprintf(f, "opcode=%u name=%s se=%d m=%d pad=%u pkey=%u destqp=%u ackreq=%d psn=%u fecn=%d becn=%d", p->opcode,
            op->name, p->solicited, p->migreq, wire_pad(p->payload_len), p->pkey, p->dest_qp, p->ackreq, p->psn.v,
            p->fecn, p->becn);
    if (op->deth)
        fprintf(f, " qkey=%u srcqp=%u", p->qkey, p->src_qp);
    if (op->xrceth)
        fprintf(f, " srqn=%u", p->srqn);
    if (op->reth || op->atomic)
        fprintf(f, " va=%" PRIu64 " rkey=%u", p->va, p->rkey);
    if (op->reth)
        fprintf(f, " dmalen=%u", p->dma_len);
    if (op->atomic)
        fprintf(f, " swap=%" PRIu64 " cmp=%" PRIu64, p->swap_add, p->compare);
    if (op->aeth)
        fprintf(f, " syndrome=%u msn=%u", p->syndrome, p->msn);
    if (op->atomic_ack)
        fprintf(f, " orig=%" PRIu64, p->orig);
    if (op->sack)
        fprintf(f, " flags=%u trigger=%u bits=%u", p->sack_flags, p->sack_trigger.v, p->sack_bits);
    if (op->imm)
        fprintf(f, " imm=%u", p->imm);
    if (op->ieth)
        fprintf(f, " inv=%u", p->inv_rkey);
    print_hex(f, "payload", p->payload, p->payload_len);
    fprintf(f, " bytes=%u\n", fr->pkt_bytes);
}

static void write_one(FILE *pcap, FILE *text, struct rng *r, const struct wire_pkt *p)
{
    struct roce_frame fr = {.ip_id = (uint16_t)rng_u64(r)};

    roce_random_flow(r, &fr.flow);
    fr.pkt_bytes = roce_build(p, &fr.flow, fr.ip_id, fr.pkt);
    roce_pcap_write(pcap, &fr);
    print_packet(text, &fr, p);
}

static void write_hello(FILE *pcap, FILE *text, struct rng *r)
{
    struct wire_hello h = {.tid = rng_u64(r), .kind = WIRE_HELLO_ASK, .caps = WIRE_HELLO_SACK, .src_qp = 17};
    uint8_t mad[WIRE_MAD_BYTES];
    struct wire_pkt p = {.opcode = WIRE_UD_SEND_ONLY,
                         .pkey = WIRE_PKEY_DEFAULT,
                         .dest_qp = WIRE_QPN_GSI,
                         .src_qp = WIRE_QPN_GSI,
                         .qkey = WIRE_QKEY_GSI,
                         .payload = mad,
                         .payload_len = sizeof mad};

    if (wire_hello_encode(&h, mad))
        abort();
    write_one(pcap, text, r, &p);
}

int main(int argc, char **argv)
{
    static uint8_t room[WIRE_PAYLOAD_MAX];
    FILE *pcap = argc == 3 ? fopen(argv[1], "wb") : NULL, *text = argc == 3 ? fopen(argv[2], "w") : NULL;
    struct rng r;
    uint8_t op;

    if (!pcap || !text)
        return 2;
    rng_seed(&r, seed_new());
    roce_pcap_begin(pcap);
    for (int round = 0; round < ROUNDS; round++)
        for (unsigned i = 0; roce_opcode(i, &op); i++) {
            struct wire_pkt p;
            roce_random_pkt(&r, op, round ? 40 : WIRE_MTU_BYTES_MAX, room, &p);
            write_one(pcap, text, &r, &p);
        }
    write_hello(pcap, text, &r);
    return fclose(pcap) || fclose(text);
}
