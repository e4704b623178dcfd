/* Service slots: order of stacking, state per queue pair, verdicts, bounds, and the two slots that come along. */
#include "base/crc.h"
#include "base/util.h"
#include "roce/wire_op.h"
#include "slot/slot.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
// clang-format off
#include <cmocka.h>
// clang-format on

/* ---- slots of the test: each writes its letter into a trace ---- */

static char trace[256];

struct tslot {
    char letter;
    uint32_t qpn;
    enum slot_verdict verdict;
    bool value, fail;
    unsigned calls;
};
static struct tslot *last_attached;
static int alive;

static void *t_attach(const char *config, uint32_t qpn, char *err, size_t err_size)
{
    if (config && strcmp(config, "bad") == 0) {
        snprintf(err, err_size, "slot t: 'bad' is wrong");
        return NULL;
    }
    struct tslot *s = calloc(1, sizeof *s);
    s->letter = config ? *config : '?';
    s->qpn = qpn;
    last_attached = s;
    alive++;
    return s;
}

static void t_detach(void *state)
{
    alive--;
    free(state);
}

static void note(struct tslot *s, const struct slot_packet *p)
{
    size_t n = strlen(trace);
    assert_int_equal(s->qpn, p->qpn); /* no slot ever sees a packet of another queue pair */
    if (n + 1 < sizeof trace) {
        trace[n] = s->letter;
        trace[n + 1] = 0;
    }
    s->calls++;
}

static int t_path(void *state, const struct slot_packet *p, uint8_t *data, size_t len)
{
    struct tslot *s = state;
    note(s, p);
    if (s->fail)
        return -EBADMSG;
    if (p->send)
        memset(data + len, s->letter, 8); /* a seal of eight letters */
    else
        for (int i = 0; i < 8; i++)
            if (data[len - 8 + (size_t)i] != s->letter)
                return -EBADMSG;
    return 0;
}

static enum slot_verdict t_beside(void *state, const struct slot_packet *p, const struct iovec *iov, int niov)
{
    struct tslot *s = state;
    (void)iov, (void)niov;
    note(s, p);
    enum slot_verdict v = s->verdict;
    s->verdict = SLOT_ACCEPT;
    return v;
}

static enum slot_verdict t_stream(void *state, const struct slot_packet *p, const struct iovec *iov, int niov,
                                  uint64_t *ret_value, bool *ret_has_value)
{
    struct tslot *s = state;
    note(s, p);
    if (!p->send && niov == 1)
        for (size_t i = 0; i < iov->iov_len; i++)
            ((uint8_t *)iov->iov_base)[i] ^= (uint8_t)s->letter;
    if (s->value) {
        *ret_value = (uint64_t)s->letter;
        *ret_has_value = true;
    }
    return s->verdict;
}

static const struct slot_ops path8 = {.name = "path8",
                                      .kind = SLOT_PATH,
                                      .overhead = 8,
                                      .max_ns = 1000000,
                                      .attach = t_attach,
                                      .detach = t_detach,
                                      .path = t_path};
static const struct slot_ops path40 = {
    .name = "path40", .kind = SLOT_PATH, .overhead = 40, .attach = t_attach, .detach = t_detach, .path = t_path};
static const struct slot_ops path3 = {
    .name = "path3", .kind = SLOT_PATH, .overhead = 3, .attach = t_attach, .detach = t_detach, .path = t_path};
static const struct slot_ops beside = {.name = "beside",
                                       .kind = SLOT_BESIDE,
                                       .max_ns = 1000000,
                                       .attach = t_attach,
                                       .detach = t_detach,
                                       .beside = t_beside};
static const struct slot_ops stream = {.name = "stream",
                                       .kind = SLOT_STREAM,
                                       .max_ns = 1000000,
                                       .attach = t_attach,
                                       .detach = t_detach,
                                       .stream = t_stream};

static struct slot_chain *chain(uint32_t qpn)
{
    struct slot_chain *c;
    assert_int_equal(slot_chain_new(qpn, &c), 0);
    trace[0] = 0;
    return c;
}

static struct tslot *attach(struct slot_chain *c, const struct slot_ops *ops, const char *letter)
{
    char err[200];
    assert_int_equal(slot_chain_attach_ops(c, ops, letter, err, sizeof err), 0);
    return last_attached;
}

static enum slot_verdict payload(struct slot_chain *c, uint32_t qpn, bool send, uint32_t psn, void *data, size_t len,
                                 uint64_t *value, bool *has)
{
    struct slot_packet p = {.qpn = qpn, .psn = psn, .send = send, .first = true, .last = true, .offset = psn * 100};
    struct iovec iov = {data, len};
    p.opcode = WIRE_RC_SEND_ONLY;
    return slot_chain_payload(c, &p, &iov, 1, value, has);
}

/* ---- */

static void slots_stack_in_the_stated_order(void **state)
{
    (void)state;
    struct slot_chain *c = chain(5);
    uint8_t data[100] = {0};
    uint64_t v;
    bool has = false;
    assert_false(slot_chain_sees_payload(c));
    attach(c, &path8, "a");
    attach(c, &stream, "b");
    attach(c, &beside, "c");
    attach(c, &path8, "d");
    attach(c, &beside, "e");
    attach(c, &stream, "f");
    assert_true(slot_chain_sees_payload(c));
    assert_int_equal(slot_chain_overhead(c), 16);
    struct slot_packet p = {.qpn = 5, .send = true};
    assert_int_equal(payload(c, 5, true, 1, data, 60, &v, &has), SLOT_ACCEPT);
    assert_int_equal(slot_chain_path(c, &p, data, 60, sizeof data), 76);
    assert_string_equal(trace, "bfcead");
    assert_memory_equal(data + 60, "aaaaaaaadddddddd", 16);
    trace[0] = 0;
    p.send = false;
    assert_int_equal(slot_chain_path(c, &p, data, 76, 76), 60);
    assert_int_equal(payload(c, 5, false, 1, data, 60, &v, &has), SLOT_ACCEPT);
    assert_string_equal(trace, "daecfb");
    assert_int_equal(data[0], 'b' ^ 'f');
    assert_false(has);
    slot_chain_free(c);
    assert_int_equal(alive, 0);
}

static void each_queue_pair_has_a_state_of_its_own(void **state)
{
    (void)state;
    struct slot_chain *c[3];
    struct tslot *s[3];
    uint64_t v;
    bool has;
    for (uint32_t i = 0; i < 3; i++) {
        c[i] = chain(100 + i);
        s[i] = attach(c[i], &beside, "x");
        assert_int_equal(s[i]->qpn, 100 + i);
    }
    assert_true(s[0] != s[1] && s[1] != s[2]);
    for (uint32_t i = 0; i < 30; i++)
        payload(c[i % 2], 100 + i % 2, i % 3 == 0, i, NULL, 0, &v, &has);
    assert_int_equal(s[0]->calls, 15);
    assert_int_equal(s[1]->calls, 15);
    assert_int_equal(s[2]->calls, 0);
    for (int i = 0; i < 3; i++)
        slot_chain_free(c[i]);
}

static void verdicts_are_honoured_and_counted(void **state)
{
    (void)state;
    struct slot_chain *c = chain(1);
    struct tslot *a = attach(c, &stream, "s"), *b = attach(c, &beside, "b"), *d = attach(c, &beside, "c");
    uint8_t data[4] = {0};
    uint64_t v;
    bool has;
    struct slot_counters n;
    const char *name;
    b->verdict = SLOT_REFUSE;
    assert_int_equal(payload(c, 1, false, 1, data, 4, &v, &has), SLOT_REFUSE);
    assert_string_equal(trace, "cb"); /* what was refused reaches no stream */
    b->verdict = SLOT_REFUSE;
    assert_int_equal(payload(c, 1, true, 1, data, 4, &v, &has), SLOT_ACCEPT);
    a->verdict = SLOT_DROP;
    assert_int_equal(payload(c, 1, false, 2, data, 4, &v, &has), SLOT_REFUSE);
    assert_int_equal(slot_chain_counters(c, 1, &name, &n), 0);
    assert_string_equal(name, "beside");
    assert_int_equal(n.refused, 1);
    assert_int_equal(n.packets, 3);
    assert_int_equal(n.bytes, 12);
    assert_int_equal(slot_chain_counters(c, 0, &name, &n), 0);
    assert_int_equal(n.refused, 1);
    assert_int_equal(slot_chain_counters(c, 3, &name, &n), -ENOENT);
    (void)d;
    slot_chain_free(c);
}

static void a_dropped_packet_is_seen_once_by_those_that_had_accepted_it(void **state)
{
    (void)state;
    struct slot_chain *c = chain(1);
    struct tslot *s = attach(c, &stream, "s"), *a = attach(c, &beside, "a"), *b = attach(c, &beside, "b"),
                 *d = attach(c, &beside, "d");
    uint8_t data[4] = {0};
    uint64_t v;
    bool has;
    b->verdict = SLOT_DROP;
    assert_int_equal(payload(c, 1, false, 7, data, 4, &v, &has), SLOT_DROP);
    b->verdict = SLOT_DROP;
    assert_int_equal(payload(c, 1, false, 7, data, 4, &v, &has), SLOT_DROP);
    assert_int_equal(payload(c, 1, false, 7, data, 4, &v, &has), SLOT_ACCEPT);
    assert_string_equal(trace, "dbbbas");
    assert_int_equal(payload(c, 1, false, 8, data, 4, &v, &has), SLOT_ACCEPT);
    assert_int_equal(s->calls, 2);
    assert_int_equal(a->calls, 2);
    assert_int_equal(d->calls, 2);
    /* Not what came again but another: all see it. */
    b->verdict = SLOT_DROP;
    assert_int_equal(payload(c, 1, false, 9, data, 4, &v, &has), SLOT_DROP);
    trace[0] = 0;
    assert_int_equal(payload(c, 1, false, 10, data, 4, &v, &has), SLOT_ACCEPT);
    assert_string_equal(trace, "dbas");
    slot_chain_free(c);
}

static void the_value_of_the_slot_attached_first_stands(void **state)
{
    (void)state;
    struct slot_chain *c = chain(1);
    struct tslot *a = attach(c, &stream, "a"), *b = attach(c, &stream, "b");
    uint8_t data[4] = {0};
    for (int send = 0; send < 2; send++) {
        uint64_t v = 7;
        bool has = false;
        a->value = b->value = true;
        payload(c, 1, send, 1, data, 4, &v, &has);
        assert_true(has && v == 'a');
        a->value = false;
        payload(c, 1, send, 2, data, 4, &v, &has);
        assert_true(has && v == 'b');
        b->value = has = false;
        payload(c, 1, send, 3, data, 4, &v, &has);
        assert_true(!has && v == 'b');
    }
    slot_chain_free(c);
}

static void what_a_slot_costs_is_bounded(void **state)
{
    (void)state;
    struct slot_chain *c = chain(1);
    char err[200];
    uint8_t data[100] = {0};
    struct slot_packet p = {.qpn = 1, .send = true};
    attach(c, &path40, "a");
    assert_int_equal(slot_chain_attach_ops(c, &path40, "b", err, sizeof err), -ENOSPC);
    assert_non_null(strstr(err, "24 are left"));
    assert_int_equal(slot_chain_attach_ops(c, &path3, "b", err, sizeof err), -ENOSPC);
    for (int i = 0; i < 3; i++)
        attach(c, &path8, "p");
    for (int i = 0; i < 4; i++)
        attach(c, &beside, "q");
    assert_int_equal(slot_chain_attach_ops(c, &beside, "r", err, sizeof err), -ENOSPC);
    assert_int_equal(slot_chain_overhead(c), SLOT_OVERHEAD_MAX);
    assert_int_equal(slot_chain_path(c, &p, data, 40, sizeof data), -ENOSPC);
    p.send = false;
    assert_int_equal(slot_chain_path(c, &p, data, 63, sizeof data), -EBADMSG);
    assert_int_equal(slot_chain_path(c, &p, data, 101, 100), -ENOSPC);
    assert_string_equal(trace, "");
    slot_chain_free(c);
    assert_int_equal(alive, 0);
}

static void a_path_slot_that_fails_drops_the_packet(void **state)
{
    (void)state;
    struct slot_chain *c = chain(1);
    uint8_t data[100] = {0};
    struct slot_packet p = {.qpn = 1, .send = true};
    struct slot_counters n;
    const char *name;
    attach(c, &path8, "a");
    attach(c, &path8, "b");
    assert_int_equal(slot_chain_path(c, &p, data, 50, sizeof data), 66);
    data[60] ^= 1; /* within b's seal */
    p.send = false;
    assert_int_equal(slot_chain_path(c, &p, data, 66, sizeof data), -EBADMSG);
    slot_chain_counters(c, 1, &name, &n);
    assert_int_equal(n.dropped, 1);
    slot_chain_counters(c, 0, &name, &n);
    assert_int_equal(n.packets, 1);
    slot_chain_free(c);
}

static void slots_are_found_by_name(void **state)
{
    (void)state;
    struct slot_chain *c = chain(1);
    char err[200] = "";
    assert_int_equal(slot_chain_attach(c, "county", err, sizeof err), -ENOENT);
    assert_non_null(strstr(err, "county"));
    assert_int_equal(slot_chain_attach(c, "", err, sizeof err), -ENOENT);
    assert_int_equal(slot_chain_attach(c, "count:x", err, sizeof err), -EINVAL);
    assert_non_null(strstr(err, "'x'"));
    assert_int_equal(slot_chain_attach_ops(c, &beside, "bad", err, sizeof err), -EINVAL);
    assert_non_null(strstr(err, "bad"));
    assert_int_equal(slot_chain_attach(c, "count", err, sizeof err), 0);
    assert_int_equal(slot_chain_attach(c, "sum", err, sizeof err), 0);
    slot_chain_free(c);
}

static void count_counts_by_opcode(void **state)
{
    (void)state;
    struct slot_chain *c = chain(1);
    char err[200], text[2000], tiny[20];
    uint8_t data[1000] = {0};
    uint64_t v;
    bool has = false;
    assert_int_equal(slot_chain_attach(c, "count", err, sizeof err), 0);
    for (int i = 0; i < 5; i++) {
        struct slot_packet p = {.qpn = 1, .opcode = WIRE_RC_WRITE_MIDDLE, .psn = (uint32_t)i, .last = i == 4};
        struct iovec iov[2] = {{data, 400}, {data + 400, 100}};
        p.opcode = i == 0 ? WIRE_RC_WRITE_FIRST : i == 4 ? WIRE_RC_WRITE_LAST : WIRE_RC_WRITE_MIDDLE;
        assert_int_equal(slot_chain_payload(c, &p, iov, 2, &v, &has), SLOT_ACCEPT);
    }
    payload(c, 1, true, 1, data, 8, &v, &has);
    slot_chain_stat(c, text, sizeof text);
    assert_non_null(strstr(text, "count (beside): packets 6 bytes 2508 dropped 0"));
    assert_non_null(strstr(text, "  received RC_WRITE_MIDDLE packets 3 messages 0 bytes 1500\n"));
    assert_non_null(strstr(text, "  received RC_WRITE_LAST packets 1 messages 1 bytes 500\n"));
    assert_non_null(strstr(text, "  sent RC_SEND_ONLY packets 1 messages 1 bytes 8\n"));
    slot_chain_stat(c, tiny, sizeof tiny);
    assert_int_equal(strlen(tiny), sizeof tiny - 1);
    assert_false(has);
    slot_chain_free(c);
}

static void sum_leaves_the_checksum_of_each_message(void **state)
{
    (void)state;
    struct slot_chain *c = chain(1);
    char err[200];
    uint8_t data[3000];
    assert_int_equal(slot_chain_attach(c, "sum", err, sizeof err), 0);
    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (uint8_t)(i * 7);
    /* Begun in the middle: no value. Then messages of all four streams, interleaved packet by packet. */
    struct slot_packet p = {.qpn = 1, .last = true};
    struct iovec iov = {data, 100};
    uint64_t v;
    bool has = false;
    slot_chain_payload(c, &p, &iov, 1, &v, &has);
    assert_false(has);
    for (int k = 0; k < 3; k++) {
        for (int i = 0; i < 4; i++) {
            p = (struct slot_packet){.qpn = 1, .send = i & 1, .response = i & 2, .first = k == 0, .last = k == 2};
            size_t at = (size_t)(k * 1000 - i * 10 * (k > 0));
            struct iovec two[2] = {{data + at, 300}, {data + at + 300, (size_t)(k == 0 ? 700 - i * 10 : 700)}};
            has = false;
            slot_chain_payload(c, &p, two, 2, &v, &has);
            assert_int_equal(has, k == 2);
            if (has)
                assert_int_equal(v, crc32c(0, data, (size_t)(3000 - i * 10)));
        }
    }
    /* A message without bytes has the sum of nothing. */
    p = (struct slot_packet){.qpn = 1, .first = true, .last = true};
    has = false;
    slot_chain_payload(c, &p, NULL, 0, &v, &has);
    assert_true(has && v == 0);
    slot_chain_free(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(slots_stack_in_the_stated_order),
        cmocka_unit_test(each_queue_pair_has_a_state_of_its_own),
        cmocka_unit_test(verdicts_are_honoured_and_counted),
        cmocka_unit_test(a_dropped_packet_is_seen_once_by_those_that_had_accepted_it),
        cmocka_unit_test(the_value_of_the_slot_attached_first_stands),
        cmocka_unit_test(what_a_slot_costs_is_bounded),
        cmocka_unit_test(a_path_slot_that_fails_drops_the_packet),
        cmocka_unit_test(slots_are_found_by_name),
        cmocka_unit_test(count_counts_by_opcode),
        cmocka_unit_test(sum_leaves_the_checksum_of_each_message),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
