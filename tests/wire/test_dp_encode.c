/* The data plane's encoder: what no decoder would take is not encoded. */
#include "dp_random.h"

#include "base/util.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

static struct pst_mac *mac;
static uint8_t room[DP_INLINE_MAX + 1];

struct bad_request {
    struct dp_request q;
    int err;
};

static void assert_not_encoded(const struct bad_request *bad, size_t n)
{
    uint8_t head[DP_HEAD_MAX];
    struct iovec iov[3];

    for (size_t i = 0; i < n; i++)
        assert_int_equal(dp_encode_request(mac, &bad[i].q, head, iov), bad[i].err);
}

static void requests_with_wrong_numbers_or_flags_are_not_encoded(void **state)
{
    const struct bad_request bad[] = {
        {{.msgno = 1}, -EINVAL},
        {{.msgno = 1, .opcode = DP_OPCODES}, -EINVAL},
        {{.opcode = DP_PING}, -EINVAL},
        {{.msgno = 1, .opcode = DP_PING, .flags = DP_F_INLINE}, -EINVAL},
        {{.msgno = 1, .opcode = DP_FSYNC}, -EINVAL},
        {{.msgno = 1, .opcode = DP_UNBIND, .cap = DP_CAPS_MAX}, -EINVAL},
        {{.msgno = 1, .opcode = DP_BIND}, -EINVAL},
        {{.msgno = 1, .opcode = DP_BIND, .payload = room, .payload_len = DP_CAP_MAX + 1}, -EINVAL},
        {{.msgno = 1, .opcode = DP_READ, .ino = 1, .length = DP_IO_MAX + 1}, -EMSGSIZE},
        {{.msgno = 1, .opcode = DP_CHUNK_READ, .ino = 1, .length = DP_CHUNK_MAX + 1}, -EMSGSIZE},
        {{.msgno = 1, .opcode = DP_READ, .ino = 1, .length = 1, .offset = INT64_MAX, .flags = DP_F_INLINE}, -EINVAL},
        {{.msgno = 1, .opcode = DP_READ, .ino = 1, .length = 2, .nsegs = 1, .seg = {{UINT64_MAX - 1, 1, 2}}}, -EINVAL},
        {{.msgno = 1, .opcode = DP_WRITE, .ino = 1, .flags = DP_F_GROW}, -EINVAL},
        {{.msgno = 1, .opcode = DP_SEEK_DATA, .ino = 1, .flags = DP_F_KILL_SETID}, -EINVAL},
        {{.msgno = 1, .opcode = DP_PUNCH, .ino = 1, .slot = DP_SLOTS_MAX, .seq = 1}, -EINVAL},
        {{.msgno = 1, .opcode = DP_PUNCH, .ino = 1, .origin = 1, .slot = DP_SLOTS_MAX, .seq = 1}, -EINVAL},
        {{.msgno = 1, .opcode = DP_CHUNK_REPLACE, .ino = 1, .flags = DP_F_GROW | DP_F_SET_SIZE}, -EINVAL},
        {{.msgno = 1, .opcode = DP_CHUNK_REPLACE, .ino = 1, .flags = DP_F_GROW, .new_size = 1ull << 63}, -EINVAL},
        {{.msgno = 1, .opcode = DP_CHUNK_REPLACE, .ino = 1, .meta_len = DP_META_MAX + 1}, -EINVAL},
    };

    (void)state;
    assert_not_encoded(bad, ARRAY_SIZE(bad));
}

static void requests_whose_bytes_are_not_in_one_place_are_not_encoded(void **state)
{
    const struct dp_seg seg = {0x1000, 7, 4096};
    const struct bad_request bad[] = {
        {{.msgno = 1, .opcode = DP_READ, .ino = 1, .length = 4096}, -EINVAL},
        {{.msgno = 1, .opcode = DP_READ, .ino = 1, .length = 4095, .nsegs = 1, .seg = {seg}}, -EINVAL},
        {{.msgno = 1, .opcode = DP_READ, .ino = 1, .flags = DP_F_INLINE, .length = DP_INLINE_MAX + 1}, -EMSGSIZE},
        {{.msgno = 1, .opcode = DP_READ, .ino = 1, .nsegs = 1}, -EINVAL},
        {{.msgno = 1, .opcode = DP_READ, .ino = 1, .flags = DP_F_EXPORTED}, -EINVAL},
        {{.msgno = 1, .opcode = DP_READ, .ino = 1, .length = 9, .flags = DP_F_EXPORTED | DP_F_INLINE}, -EINVAL},
        {{.msgno = 1, .opcode = DP_PUNCH, .ino = 1, .length = 9, .flags = DP_F_EXPORTED}, -EINVAL},
        {{.msgno = 1, .opcode = DP_READ, .ino = 1, .flags = DP_F_THIRD, .nsegs = 1, .seg = {{7, 1, 0}}}, -EINVAL},
        {{.msgno = 1, .opcode = DP_READ, .ino = 1, .length = 9, .flags = DP_F_THIRD, .nsegs = 1, .seg = {{7, 1, 9}}},
         -EINVAL},
        {{.msgno = 1, .opcode = DP_READ, .ino = 1, .length = 9, .flags = DP_F_THIRD, .nsegs = 2,
          .seg = {{7, 0, 0}, {0, 1, 9}}},
         -EINVAL},
        {{.msgno = 1, .opcode = DP_READ, .ino = 1, .length = 9, .flags = DP_F_THIRD, .nsegs = 2,
          .seg = {{7, 1, 1}, {0, 1, 8}}},
         -EINVAL},
        {{.msgno = 1,
          .opcode = DP_READ,
          .ino = 1,
          .length = 9,
          .flags = DP_F_THIRD | DP_F_EXPORTED,
          .nsegs = 2,
          .seg = {{7, 1, 0}, {0, 1, 9}}},
         -EINVAL},
        {{.msgno = 1, .opcode = DP_PUNCH, .ino = 1, .length = 9, .flags = DP_F_THIRD}, -EINVAL},
        {{.msgno = 1, .opcode = DP_READ, .ino = 1, .length = 5, .nsegs = 5}, -EINVAL},
        {{.msgno = 1,
          .opcode = DP_WRITE,
          .ino = 1,
          .length = 9,
          .flags = DP_F_INLINE,
          .payload = room,
          .payload_len = 8},
         -EINVAL},
        {{.msgno = 1,
          .opcode = DP_WRITE,
          .ino = 1,
          .length = 4096,
          .nsegs = 1,
          .seg = {seg},
          .payload = room,
          .payload_len = 8},
         -EINVAL},
    };

    (void)state;
    assert_not_encoded(bad, ARRAY_SIZE(bad));
}

static void wrong_replies_are_not_encoded(void **state)
{
    struct dp_reply p = {
        .msgno = 1, .opcode = DP_READ, .payload = room, .payload_len = DP_INLINE_MAX + 1, .result = DP_INLINE_MAX + 1};
    uint8_t head[DP_HEAD_MAX];
    struct iovec iov[3];

    (void)state;
    assert_int_equal(dp_encode_reply(mac, &p, head, iov), -EMSGSIZE);
    p.payload_len = 1;
    assert_int_equal(dp_encode_reply(mac, &p, head, iov), -EINVAL);
    p = (struct dp_reply){.msgno = 1, .opcode = DP_READ, .status = 1};
    assert_int_equal(dp_encode_reply(mac, &p, head, iov), -EINVAL);
    p = (struct dp_reply){.msgno = 1, .opcode = DP_WRITE, .meta_len = 1};
    assert_int_equal(dp_encode_reply(mac, &p, head, iov), -EINVAL);
}

static void numbers_that_an_opcode_has_no_use_for_are_left_out(void **state)
{
    struct dp_request q = {.msgno = 1,
                           .opcode = DP_FSYNC,
                           .ino = 5,
                           .cap = 3,
                           .offset = 9,
                           .length = 8,
                           .slot = 7,
                           .origin = 8,
                           .seq = 6,
                           .version = 5,
                           .meta_len = 4,
                           .new_size = 3};
    uint8_t head[DP_HEAD_MAX], buf[DP_MSG_MAX];
    struct iovec iov[3];
    int n = dp_encode_request(mac, &q, head, iov);

    (void)state;
    assert_true(n >= 1 && n <= 3);
    assert_int_equal(dp_decode_request(mac, buf, dp_join(iov, n, buf), &q), 0);
    assert_true(q.ino == 5 && q.cap == 3 && !q.offset && !q.length && !q.slot && !q.origin && !q.seq && !q.version &&
                !q.meta_len && !q.new_size);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(requests_with_wrong_numbers_or_flags_are_not_encoded),
        cmocka_unit_test(requests_whose_bytes_are_not_in_one_place_are_not_encoded),
        cmocka_unit_test(wrong_replies_are_not_encoded),
        cmocka_unit_test(numbers_that_an_opcode_has_no_use_for_are_left_out),
    };
    const uint8_t key[DP_KEY_BYTES] = {1, 2, 3};
    int r;

    mac = pst_mac_new(key, sizeof key);
    if (!mac)
        return 2;
    r = cmocka_run_group_tests(tests, NULL, NULL);
    pst_mac_free(mac);
    return r;
}
