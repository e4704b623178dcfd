/* The base library against published vectors and, for the bitmap, a plain array as the model. */
#include "base/bitmap.h"
#include "base/buf.h"
#include "base/crc.h"
#include "base/crypto.h"
#include "base/endian.h"
#include "base/err.h"
#include "base/list.h"
#include "base/log.h"
#include "base/rng.h"
#include "base/trace.h"
#include "base/util.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static void crc_matches_rfc3720(void **state)
{
    uint8_t zeroes[32] = {0};
    (void)state;
    assert_int_equal(crc32c(0, "123456789", 9), 0xe3069283);
    assert_int_equal(crc32c(0, zeroes, sizeof zeroes), 0x8a9136aa);
    assert_int_equal(crc32c(crc32c(0, "1234", 4), "56789", 5), 0xe3069283);
}

static void hmac_matches_rfc4231(void **state)
{
    static const uint8_t want[8] = {0x5b, 0xdc, 0xc1, 0x46, 0xbf, 0x60, 0x75, 0x4e}; /* test case 2 */
    struct pst_bytes parts[] = {{"what do ya want ", 16}, {"", 0}, {"for nothing?", 12}};
    uint8_t mac[PST_HMAC_BYTES], again[PST_HMAC_BYTES];
    struct pst_mac *m = pst_mac_new("Jefe", 4);
    (void)state;

    assert_int_equal(pst_hmac("Jefe", 4, parts, 3, mac), 0);
    assert_memory_equal(mac, want, sizeof want);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(pst_mac(m, parts, 3, again), 0);
        assert_memory_equal(again, mac, sizeof mac);
    }
    pst_mac_free(m);
}

static void bitmap_agrees_with_an_array(void **state)
{
    enum { N = 777 };
    struct bitmap b;
    bool model[N] = {false};
    struct rng r;
    (void)state;

    rng_seed(&r, 1);
    assert_int_equal(bitmap_init(&b, N), 0);
    for (int step = 0; step < 3000; step++) {
        uint64_t start = rng_below(&r, N), n = rng_below(&r, min_u64(N - start, 200) + 1), best = 0, at = 0, got;
        bool set = rng_below(&r, 2);
        for (uint64_t i = start; i < start + n; i++)
            model[i] = set;
        if (set)
            bitmap_set(&b, start, n);
        else
            bitmap_clear(&b, start, n);

        uint64_t count = 0, longest = 0, run = 0, want = 1 + rng_below(&r, 100);
        for (int i = 0; i < N; i++) {
            count += model[i];
            run = model[i] ? 0 : run + 1;
            longest = max_u64(longest, run);
        }
        assert_int_equal(bitmap_count(&b), count);
        best = bitmap_find_clear(&b, 0, want, &at);
        assert_int_equal(best, min_u64(want, longest));
        if (best)
            assert_true(bitmap_range_clear(&b, at, best));
        got = bitmap_find_clear(&b, rng_below(&r, N), 1, &at);
        assert_int_equal(got, count < N);
    }
    bitmap_done(&b);
}

static void buffers_round_trip_and_refuse_every_truncation(void **state)
{
    struct wbuf w = {0};
    (void)state;

    wbuf_u8(&w, 1);
    wbuf_u16(&w, 0x203);
    wbuf_u32(&w, 0x4050607);
    wbuf_be64(&w, 0x1122334455667788);
    wbuf_blob(&w, "hello", 5);
    assert_int_equal(w.err, 0);
    for (size_t n = 0; n <= w.len; n++) {
        struct rbuf r = rbuf_of(w.data, n);
        size_t len;
        uint8_t a = rbuf_u8(&r);
        uint16_t b = rbuf_u16(&r);
        uint32_t c = rbuf_u32(&r);
        uint64_t d = rbuf_be64(&r);
        const void *p = rbuf_blob(&r, 16, &len);
        assert_int_equal(rbuf_end(&r), n == w.len ? 0 : -EBADMSG);
        if (n == w.len) {
            assert_int_equal(a, 1);
            assert_int_equal(b, 0x203);
            assert_int_equal(c, 0x4050607);
            assert_int_equal(d, 0x1122334455667788);
            assert_int_equal(len, 5);
            assert_memory_equal(p, "hello", 5);
        }
    }
    wbuf_done(&w);
}

static void endian_types_are_bytes_in_order(void **state)
{
    (void)state;
    assert_memory_equal(put_be32(0x01020304).b, "\1\2\3\4", 4);
    assert_memory_equal(put_le32(0x01020304).b, "\4\3\2\1", 4);
    assert_memory_equal(put_be24(0x010203).b, "\1\2\3", 3);
    assert_int_equal(get_be24(put_be24(0xabcdef)), 0xabcdef);
    assert_int_equal(get_be16(put_be16(0xbeef)), 0xbeef);
}

static void lists_keep_order(void **state)
{
    struct item {
        struct list l;
        int v;
    } it[4];
    struct list a = LIST_INIT(a), b = LIST_INIT(b);
    int want = 0;
    (void)state;

    for (int i = 0; i < 4; i++) {
        it[i].v = i;
        list_push_back(i < 2 ? &a : &b, &it[i].l);
    }
    list_splice_back(&a, &b);
    assert_true(list_empty(&b));
    list_for_each(l, &a)
        assert_int_equal(list_entry(l, struct item, l)->v, want++);
    list_del(&it[1].l);
    list_del(&it[1].l);
    assert_ptr_equal(list_pop_front(&a), &it[0].l);
    assert_ptr_equal(list_pop_front(&a), &it[2].l);
}

static void errors_have_names(void **state)
{
    (void)state;
    assert_string_equal(err_name(-ENOENT), "ENOENT");
    assert_string_equal(err_name(EDQUOT), "EDQUOT");
    assert_string_equal(err_name(99999), "E?");
}

struct heard {
    unsigned lines[4];
    char last[300];
};

static void hear(enum log_level level, const char *line, void *user)
{
    struct heard *h = user;

    h->lines[level]++;
    snprintf(h->last, sizeof h->last, "%s", line);
}

static void a_request_is_told_when_it_failed_was_slow_or_all_are(void **state)
{
    struct heard h = {0};
    uint64_t id = trace_new(), was;
    (void)state;

    assert_in_range(id, 1, TRACE_MAX);
    assert_int_not_equal(id, trace_new());
    assert_int_equal(trace_for(id), id);
    assert_int_equal(trace_for(id | 1ull << 60), id);
    log_set_sink(hear, &h);
    log_set_level(LOG_LVL_INFO);
    trace_set_slow(NSEC_PER_SEC);
    assert_false(trace_tells(-ENOENT, NSEC_PER_SEC - 1));
    assert_true(trace_tells(-EIO, 0));
    assert_true(trace_tells(0, NSEC_PER_SEC));
    trace_end("t", true, 0xabc, -ENOENT, 0, "lookup"); /* an answer as any */
    assert_int_equal(h.lines[LOG_LVL_INFO] + h.lines[LOG_LVL_WARN], 0);
    trace_end("t", true, 0xabc, 0, 1500 * NSEC_PER_MSEC, "read of %d", 7);
    assert_string_equal(h.last, "t: info: request 000000000abc: slow read of 7: done, 1500.000 ms");
    trace_end("t", true, 0xabc, -EIO, 2345000, "read");
    assert_string_equal(h.last, "t: warn: request 000000000abc: read: EIO, 2.345 ms");
    trace_end("t", false, 0xabc, -EIO, 2345000, "read");
    assert_int_equal(h.lines[LOG_LVL_WARN], 1);
    trace_set_slow(0);
    assert_false(trace_tells(0, UINT64_MAX));
    /* Whatever the thread logs meanwhile has the id. */
    was = trace_enter(0xdef);
    log_write(LOG_LVL_INFO, "x", "line");
    assert_string_equal(h.last, "x: info: request 000000000def: line");
    assert_int_equal(trace_for(0), 0xdef);
    assert_int_equal(trace_enter(was), 0xdef);
    assert_int_equal(trace_current(), 0);
    for (int i = 0; i < 1000; i++)
        trace_end("t", true, 1, -EIO, 0, "read");
    assert_in_range(h.lines[LOG_LVL_WARN], 40, 150); /* and not a thousand */
    log_set_level(LOG_LVL_DEBUG);
    trace_end("t", true, 1, 0, 0, "read");
    assert_int_equal(h.lines[LOG_LVL_DEBUG], 1);
    log_set_level(LOG_LVL_WARN);
    log_set_sink(NULL, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(crc_matches_rfc3720),
        cmocka_unit_test(hmac_matches_rfc4231),
        cmocka_unit_test(bitmap_agrees_with_an_array),
        cmocka_unit_test(buffers_round_trip_and_refuse_every_truncation),
        cmocka_unit_test(endian_types_are_bytes_in_order),
        cmocka_unit_test(lists_keep_order),
        cmocka_unit_test(errors_have_names),
        cmocka_unit_test(a_request_is_told_when_it_failed_was_slow_or_all_are),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
