/*
 * Captures of two Linux soft-RoCE peers (pcaps/README.md): every packet decodes, has the ICRC that we compute, and is
 * encoded to the same bytes again. Arguments: pcap files.
 */
#include "roce_frames.h"

#include "base/util.h"
#include "roce/wire_mad.h"

#include <errno.h>
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static char **files;
static struct wire_icrc_tab tab;

/* Calls fn on every packet of every file. */
static unsigned for_each_packet(void (*fn)(const struct roce_frame *fr, const struct wire_pkt *p))
{
    static struct roce_frame fr;
    unsigned count = 0;

    for (char **name = files; *name; name++) {
        FILE *f = roce_pcap_open(*name);
        struct wire_pkt p;
        int rc;

        if (!f)
            fail_msg("%s: not a pcap file", *name);
        while ((rc = roce_pcap_read(f, &fr)) == 1) {
            if (wire_decode(fr.pkt, fr.pkt_bytes, &p) < 0)
                fail_msg("%s: packet %u is refused", *name, count);
            fn(&fr, &p);
            count++;
        }
        if (rc)
            fail_msg("%s: damaged", *name);
        fclose(f);
    }
    return count;
}

static void check_same(const struct roce_frame *fr, const struct wire_pkt *p)
{
    static uint8_t again[WIRE_PKT_MAX];

    assert_int_equal(roce_build(p, &fr->flow, fr->ip_id, again), fr->pkt_bytes);
    assert_memory_equal(again, fr->pkt, fr->pkt_bytes);
}

static void every_packet_is_encoded_to_the_same_bytes(void **state)
{
    (void)state;
    assert_true(for_each_packet(check_same) > 400);
}

static void check_icrc(const struct roce_frame *fr, const struct wire_pkt *p)
{
    struct wire_icrc_ids known = {.known = true, .id = fr->ip_id}, solve = {.set = 64, .solve = true};
    static struct roce_frame bad;
    uint16_t id = 0;
    int how;

    assert_int_equal(wire_icrc_verify(&tab, &fr->flow, &known, fr->pkt, fr->pkt_bytes, NULL), WIRE_ICRC_FULL);
    how = wire_icrc_verify(&tab, &fr->flow, &solve, fr->pkt, fr->pkt_bytes, &id);
    assert_int_equal(how, fr->flow.v6 ? WIRE_ICRC_FULL : fr->ip_id < 64 ? WIRE_ICRC_SET : WIRE_ICRC_SOLVED);
    assert_int_equal(id, fr->ip_id);
    bad = *fr;
    bad.pkt[8 + p->psn.v % 4] ^= 1;
    assert_int_equal(wire_icrc_verify(&tab, &bad.flow, &solve, bad.pkt, bad.pkt_bytes, NULL), -EILSEQ);
}

static void every_icrc_is_right_with_its_id_known_and_solved_for(void **state)
{
    (void)state;
    for_each_packet(check_icrc);
}

static unsigned seen[256], mads, naks, rnrs, pads;

static void count(const struct roce_frame *fr, const struct wire_pkt *p)
{
    struct wire_hello hello;
    struct wire_mad mad;

    (void)fr;
    seen[p->opcode]++;
    pads += p->pad != 0;
    if (p->opcode == WIRE_RC_ACK) {
        naks += wire_ack_kind(p->syndrome) == WIRE_ACK_NAK;
        rnrs += wire_ack_kind(p->syndrome) == WIRE_ACK_RNR;
    }
    if (p->opcode == WIRE_UD_SEND_ONLY && p->dest_qp == WIRE_QPN_GSI) {
        assert_int_equal(p->qkey, WIRE_QKEY_GSI);
        assert_int_equal(wire_mad_decode(p->payload, p->payload_len, &mad), 0);
        assert_int_equal(mad.mgmt_class, WIRE_MAD_CM);
        assert_int_equal(wire_hello_decode(p->payload, p->payload_len, &hello), -ENOMSG);
        mads++;
    }
}

/* A capture that was lost from the list would go unnoticed otherwise. */
static void the_captures_have_all_that_soft_roce_speaks(void **state)
{
    static const uint8_t never[] = {WIRE_RC_SEND_LAST_INV,
                                    WIRE_RC_SEND_ONLY_INV,
                                    WIRE_UC_SEND_ONLY,
                                    WIRE_UC_SEND_ONLY_IMM,
                                    WIRE_UC_SEND_LAST_IMM,
                                    WIRE_CNP,
                                    WIRE_SACK};

    (void)state;
    for_each_packet(count);
    for (uint8_t i = 0; i < 0x18; i++) {
        if (wire_op(i) && !memchr(never, i, sizeof never) && !seen[i])
            fail_msg("no %s", wire_op_name(i));
    }
    assert_true(seen[WIRE_UC_SEND_FIRST] && seen[WIRE_UC_SEND_MIDDLE] && seen[WIRE_UC_SEND_LAST]);
    assert_true(seen[WIRE_UD_SEND_ONLY] && seen[WIRE_UD_SEND_ONLY_IMM]);
    assert_true(mads > 10 && naks >= 4 && rnrs >= 5 && pads >= 10);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_packet_is_encoded_to_the_same_bytes),
        cmocka_unit_test(every_icrc_is_right_with_its_id_known_and_solved_for),
        cmocka_unit_test(the_captures_have_all_that_soft_roce_speaks),
    };

    if (argc < 2)
        return 2;
    files = argv + 1;
    wire_icrc_tab_init(&tab);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
