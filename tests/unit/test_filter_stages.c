/* The stages of the chunk filters, each alone and in their order: what comes back, and what is refused. */
#include "codec.h"
#include "compress.h"
#include "keys.h"

#include "base/rng.h"
#include "base/util.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

static void unhex(const char *s, uint8_t *out)
{
    for (; *s; s += 2) {
        unsigned v;
        assert_int_equal(sscanf(s, "%2x", &v), 1);
        *out++ = (uint8_t)v;
    }
}

/* ---- AES-256-GCM: test cases 13 to 16 of McGrew and Viega's specification, which NIST took over ---- */

struct vector {
    const char *key, *nonce, *aad, *plain, *cipher, *tag;
};

#define Z32 "0000000000000000000000000000000000000000000000000000000000000000"
#define K15 "feffe9928665731c6d6a8f9467308308feffe9928665731c6d6a8f9467308308"
#define P15                                                                                                            \
    "d9313225f88406e5a55909c5aff5269a86a7a9531534f7da2e4c303d8a318a721c3c0c95956809532fcf0e2449a6b525b16aedf5aa0de657" \
    "ba637b39"
#define C15                                                                                                            \
    "522dc1f099567d07f47f37a32a84427d643a8cdcbfe5c0c97598a2bd2555d1aa8cb08e48590dbb3da7b08b1056828838c5f61e6393ba7a0a" \
    "bcc9f662"

static const struct vector vectors[] = {
    {Z32, "000000000000000000000000", "", "", "", "530f8afbc74536b9a963b4f1c4cb738b"},
    {Z32, "000000000000000000000000", "", "00000000000000000000000000000000", "cea7403d4d606b6e074ec5d3baf39d18",
     "d0d1c8a799996bf0265b98b5d48ab919"},
    {K15, "cafebabefacedbaddecaf888", "", P15 "1aafd255", C15 "898015ad", "b094dac5d93471bdec1a502270e3cc6c"},
    {K15, "cafebabefacedbaddecaf888", "feedfacedeadbeeffeedfacedeadbeefabaddad2", P15, C15,
     "76fc6ece0f4e1768cddf8853bb2d551b"},
};

static void gcm_is_that_of_nist(void **state)
{
    struct seal *s = seal_new();
    (void)state;

    for (size_t i = 0; i < ARRAY_SIZE(vectors); i++) {
        const struct vector *v = &vectors[i];
        uint8_t key[32], nonce[12], aad[32], plain[64], want[64], tag[16], out[64], got[16], back[64];
        size_t n = strlen(v->plain) / 2, a = strlen(v->aad) / 2;
        unhex(v->key, key);
        unhex(v->nonce, nonce);
        unhex(v->aad, aad);
        unhex(v->plain, plain);
        unhex(v->cipher, want);
        unhex(v->tag, tag);
        assert_int_equal(seal_gcm(s, key, nonce, aad, a, plain, n, out, got), 0);
        assert_memory_equal(out, want, n);
        assert_memory_equal(got, tag, 16);
        assert_int_equal(seal_gcm_open(s, key, nonce, aad, a, out, n, got, back), 0);
        assert_memory_equal(back, plain, n);
        got[i] ^= 1;
        assert_int_equal(seal_gcm_open(s, key, nonce, aad, a, out, n, got, back), -EBADMSG);
    }
    seal_free(s);
}

static void the_long_nonce_is_that_of_xaes_256_gcm(void **state)
{
    struct seal *s = seal_new();
    const char *nonce = "ABCDEFGHIJKLMNOPQRSTUVWX", *aad = "c2sp.org/XAES-256-GCM";
    uint8_t key[32], want[28], out[12], tag[16];
    (void)state;

    memset(key, 1, sizeof key);
    unhex("ce546ef63c9cc60765923609b33a9a1974e96e52daf2fcf7075e2271", want);
    assert_int_equal(seal_close(s, key, (const uint8_t *)nonce, NULL, 0, (const uint8_t *)"XAES-256-GCM", 12, out, tag),
                     0);
    assert_memory_equal(out, want, 12);
    assert_memory_equal(tag, want + 12, 16);
    memset(key, 3, sizeof key);
    unhex("986ec1832593df5443a179437fd083bf3fdb41abd740a21f71eb769d", want);
    assert_int_equal(
        seal_close(s, key, (const uint8_t *)nonce, aad, strlen(aad), (const uint8_t *)"XAES-256-GCM", 12, out, tag), 0);
    assert_memory_equal(out, want, 12);
    assert_memory_equal(tag, want + 12, 16);
    seal_free(s);
}

/* ---- all stages ---- */

static struct codec_stats stats;
static struct codec_ctx cx;
static const struct codec_place here = {{1, 2, 3}, 77, 5, 1048576};
static const uint8_t key[SEAL_KEY] = {9, 8, 7};
static uint8_t plain[PST_CHUNK_DEFAULT], buf[PST_CHUNK_DEFAULT], back[PST_CHUNK_DEFAULT], stored[PST_CHUNK_DEFAULT];

static struct codec codec_of(bool csum, enum meta_alg alg, bool crypt)
{
    return (struct codec){.csum = csum, .crypt = crypt, .alg = alg, .level = 1, .stats = &stats};
}

static int decode(const struct codec *c, const struct codec_place *at, const uint8_t *k, const struct codec_out *o,
                  uint32_t *ret_len, enum codec_refusal *why)
{
    uint64_t gen;

    memcpy(stored, o->data, o->len);
    memset(back, 0xee, sizeof back);
    return codec_decode(c, &cx, at, k, stored, o->len, o->meta, o->meta_len, back, sizeof back, ret_len, &gen, why);
}

/* Text that becomes shorter, or what does not. */
static void fill(uint32_t len, bool text, uint64_t seed)
{
    struct rng r;

    rng_seed(&r, seed);
    if (!text) {
        rng_fill(&r, plain, len);
        return;
    }
    for (uint32_t i = 0; i < len; i++)
        plain[i] = (uint8_t)("the quick brown fox jumps over the lazy dog "[i % 44] + (rng_below(&r, 50) == 0));
}

static const uint32_t lengths[] = {1, 15, 4096, 4097, 65536, 99999, PST_CHUNK_DEFAULT};

static void every_combination_comes_back_and_is_never_longer(void **state)
{
    (void)state;
    for (int bits = 0; bits < 24; bits++) {
        struct codec c = codec_of(bits & 1, (enum meta_alg)(bits / 4 % 3), bits & 2);
        c.level = bits >= 12 ? 5 : 1;
        for (size_t i = 0; i < ARRAY_SIZE(lengths); i++)
            for (int text = 0; text < 2; text++) {
                struct codec reader = codec_of(false, META_RAW, c.crypt);
                struct codec_out o;
                enum codec_refusal why;
                uint32_t len = 0;
                fill(lengths[i], text, i);
                assert_int_equal(codec_encode(&c, &cx, &here, key, 3, plain, lengths[i], buf, &o), 0);
                assert_true(o.len >= 1 && o.len <= lengths[i] && o.meta_len <= PST_META_MAX);
                if (text && c.alg && lengths[i] > 65535)
                    assert_true(o.len < lengths[i] / 2);
                if (c.crypt && o.len > 15)
                    assert_true(o.data == buf && memcmp(o.data, plain, 16) != 0);
                /* Whoever reads needs to know no more than the key. */
                assert_int_equal(decode(&reader, &here, key, &o, &len, &why), 0);
                assert_int_equal(len, lengths[i]);
                assert_memory_equal(back, plain, len);
            }
    }
}

static void every_flipped_bit_is_refused(void **state)
{
    (void)state;
    for (int crypt = 0; crypt < 2; crypt++)
        for (int alg = 0; alg < META_ALGS; alg++) {
            struct codec c = codec_of(!crypt, (enum meta_alg)alg, crypt);
            struct codec_out o;
            enum codec_refusal why;
            uint32_t len;
            fill(9000, true, 4);
            assert_int_equal(codec_encode(&c, &cx, &here, key, 3, plain, 9000, buf, &o), 0);
            for (uint32_t bit = 0; bit < 8 * (o.len < 600 ? o.len : 600); bit++) {
                uint8_t *p = (uint8_t *)(uintptr_t)o.data;
                p[bit / 8] ^= (uint8_t)(1 << bit % 8);
                assert_true(decode(&c, &here, key, &o, &len, &why) < 0);
                assert_int_equal(why, crypt ? REFUSED_TAG : REFUSED_CSUM);
                p[bit / 8] ^= (uint8_t)(1 << bit % 8);
            }
            for (uint32_t bit = 0; bit < 8 * o.meta_len; bit++) {
                o.meta[bit / 8] ^= (uint8_t)(1 << bit % 8);
                int r = decode(&c, &here, key, &o, &len, &why);
                /* The checksum's own field means nothing where there is none. */
                assert_true(r == -EIO || r == -ENOTSUP || r == -EKEYREJECTED);
                assert_true(why != REFUSED_NOT);
                o.meta[bit / 8] ^= (uint8_t)(1 << bit % 8);
            }
            assert_int_equal(decode(&c, &here, key, &o, &len, &why), 0);
        }
}

static void a_chunk_cut_short_is_refused(void **state)
{
    (void)state;
    for (int mode = 0; mode < 5; mode++) {
        struct codec c = codec_of(mode == 0, mode == 1 ? META_LZ4 : mode == 2 ? META_ZSTD : META_RAW, mode == 3);
        struct codec_out o;
        enum codec_refusal why;
        uint32_t len, whole;
        fill(9000, true, 5);
        assert_int_equal(codec_encode(&c, &cx, &here, key, 3, plain, 9000, buf, &o), 0);
        whole = o.len;
        for (o.len = 0; o.len < whole; o.len += o.len < 100 ? 1 : 97)
            assert_true(decode(&c, &here, key, &o, &len, &why) < 0);
        o.len = whole;
        whole = o.meta_len;
        for (o.meta_len = 1; o.meta_len < whole; o.meta_len++)
            assert_true(decode(&c, &here, key, &o, &len, &why) < 0);
    }
}

static void a_chunk_of_another_place_or_key_is_refused(void **state)
{
    struct codec crypt = codec_of(false, META_LZ4, true), csum = codec_of(true, META_LZ4, false);
    struct codec_place other[4] = {here, here, here, here};
    uint8_t wrong[SEAL_KEY] = {1};
    struct codec_out o;
    enum codec_refusal why;
    uint32_t len;
    (void)state;

    other[0].ino++;
    other[1].chunk++;
    other[2].cont[15]++;
    other[3].chunk_size /= 2;
    fill(9000, true, 6);
    assert_int_equal(codec_encode(&crypt, &cx, &here, key, 3, plain, 9000, buf, &o), 0);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(decode(&crypt, &other[i], key, &o, &len, &why), -EIO);
        assert_int_equal(why, REFUSED_TAG);
    }
    assert_int_equal(decode(&crypt, &here, wrong, &o, &len, &why), -EIO);
    assert_int_equal(why, REFUSED_TAG);
    assert_int_equal(decode(&csum, &here, NULL, &o, &len, &why), -EKEYREJECTED);
    assert_int_equal(why, REFUSED_KEY);
    /* And what is not encrypted is not taken for what was: with meta data and without. */
    assert_int_equal(codec_encode(&csum, &cx, &here, NULL, 3, plain, 9000, buf, &o), 0);
    assert_int_equal(decode(&crypt, &here, key, &o, &len, &why), -EIO);
    assert_int_equal(why, REFUSED_PLAIN);
    o.meta_len = 0;
    assert_int_equal(decode(&crypt, &here, key, &o, &len, &why), -EIO);
    assert_int_equal(why, REFUSED_PLAIN);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(codec_encode(&csum, &cx, &here, NULL, 3, plain, 9000, buf, &o), 0);
        assert_int_equal(decode(&csum, &other[i], NULL, &o, &len, &why), -EIO);
        assert_int_equal(why, REFUSED_CSUM);
    }
}

static void a_chunk_of_a_later_version_is_told_apart_from_a_damaged_one(void **state)
{
    struct codec c = codec_of(false, META_RAW, false);
    struct codec_out o;
    enum codec_refusal why;
    uint32_t len;
    (void)state;

    fill(100, true, 7);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(codec_encode(&c, &cx, &here, NULL, 0, plain, 100, buf, &o), 0);
        o.meta[i] = i == 0 ? META_VERSION + 1 : 0x80;
        assert_int_equal(decode(&c, &here, NULL, &o, &len, &why), -ENOTSUP);
        assert_int_equal(why, REFUSED_UNKNOWN);
    }
}

static int by_nonce(const void *a, const void *b)
{
    return memcmp(a, b, META_NONCE);
}

static void nonces_of_many_chunks_all_differ(void **state)
{
    struct codec c = codec_of(false, META_RAW, true);
    static uint8_t seen[20000][META_NONCE];
    struct chunk_meta m;
    struct codec_out o;
    (void)state;

    for (size_t i = 0; i < ARRAY_SIZE(seen); i++) { /* the same bytes, place and generation each time */
        assert_int_equal(codec_encode(&c, &cx, &here, key, 3, plain, 16, buf, &o), 0);
        assert_int_equal(meta_decode(o.meta, o.meta_len, &m), 0);
        memcpy(seen[i], m.nonce, META_NONCE);
    }
    qsort(seen, ARRAY_SIZE(seen), META_NONCE, by_nonce);
    for (size_t i = 1; i < ARRAY_SIZE(seen); i++)
        assert_memory_not_equal(seen[i - 1], seen[i], META_NONCE);
}

/* ---- keys ---- */

static struct keyring ring_of(uint8_t first)
{
    struct keyring k = {0};
    uint8_t tenant[SEAL_KEY] = {first};

    assert_int_equal(tenant_key_init(&k.now, tenant), 0);
    return k;
}

static void a_header_opens_for_its_object_and_tenant_only(void **state)
{
    struct keyring k = ring_of(1), other = ring_of(2);
    struct header_place at = {{5}, 42}, there = {{5}, 43}, elsewhere = {{6}, 42};
    uint8_t h[HEADER_BYTES], a[SEAL_KEY], b[SEAL_KEY];
    bool old;
    (void)state;

    assert_int_equal(header_make(&k, cx.seal, &at, h, a), 0);
    assert_int_equal(header_open(&k, cx.seal, &at, h, sizeof h, b, &old), 0);
    assert_memory_equal(a, b, SEAL_KEY);
    assert_false(old);
    assert_int_equal(header_open(&k, cx.seal, &there, h, sizeof h, b, &old), -EBADMSG);
    assert_int_equal(header_open(&k, cx.seal, &elsewhere, h, sizeof h, b, &old), -EBADMSG);
    assert_int_equal(header_open(&other, cx.seal, &at, h, sizeof h, b, &old), -EKEYREJECTED);
    for (size_t n = 0; n < sizeof h; n++)
        assert_int_equal(header_open(&k, cx.seal, &at, h, n, b, &old), -EBADMSG);
    for (size_t bit = 0; bit < 8 * sizeof h; bit++) {
        h[bit / 8] ^= (uint8_t)(1 << bit % 8);
        assert_true(header_open(&k, cx.seal, &at, h, sizeof h, b, &old) < 0);
        h[bit / 8] ^= (uint8_t)(1 << bit % 8);
    }
}

static void a_rewrapped_header_has_the_same_data_key(void **state)
{
    struct keyring first = ring_of(1), both = ring_of(2), second = ring_of(2);
    struct header_place at = {{5}, 42};
    uint8_t h[HEADER_BYTES], h2[HEADER_BYTES], a[SEAL_KEY], b[SEAL_KEY];
    bool old;
    (void)state;

    both.old[both.nold++] = first.now;
    assert_int_equal(header_make(&first, cx.seal, &at, h, a), 0);
    assert_int_equal(header_open(&both, cx.seal, &at, h, sizeof h, b, &old), 0);
    assert_true(old);
    assert_int_equal(header_open(&second, cx.seal, &at, h, sizeof h, b, &old), -EKEYREJECTED);
    assert_int_equal(header_wrap(&both, cx.seal, &at, b, h2), 0);
    assert_int_equal(header_open(&second, cx.seal, &at, h2, sizeof h2, b, &old), 0);
    assert_memory_equal(a, b, SEAL_KEY);
    assert_int_equal(header_open(&first, cx.seal, &at, h2, sizeof h2, b, &old), -EKEYREJECTED);
}

#define HEX "00112233445566778899aabbccddeeffFFEEDDCCBBAA99887766554433221100"

static int option(struct keyring *k, const char *name, const char *value, bool *have, char *err)
{
    struct pst_option o = {name, value};

    err[0] = 0;
    return keyring_option(k, &o, have, err, 200);
}

static void keys_come_from_a_file_the_environment_or_a_command(void **state)
{
    char path[] = "/tmp/pst-key-XXXXXX", err[200], command[100];
    struct keyring a = {0}, b = {0}, c = {0};
    bool have = false;
    int fd = mkstemp(path);
    (void)state;

    assert_true(fd >= 0);
    assert_int_equal(write(fd, HEX "\n", 65), 65);
    assert_int_equal(option(&a, "key_file", path, &have, err), 0);
    assert_true(have);
    assert_int_equal(option(&a, "key_file", path, &have, err), -EINVAL); /* one only */
    assert_int_equal(option(&a, "old_key_file", path, &have, err), 0);
    assert_int_equal(a.nold, 1);
    setenv("PST_TEST_KEY", HEX, 1);
    have = false;
    assert_int_equal(option(&b, "key_env", "PST_TEST_KEY", &have, err), 0);
    have = false;
    snprintf(command, sizeof command, "cat %s", path);
    assert_int_equal(option(&c, "key_command", command, &have, err), 0);
    assert_memory_equal(&a.now, &b.now, sizeof a.now);
    assert_memory_equal(&a.now, &c.now, sizeof a.now);
    assert_int_equal(a.now.key[0], 0);
    assert_int_equal(a.now.key[31], 0);
    assert_int_equal(a.now.key[15], 0xff);

    have = false;
    assert_int_equal(option(&c, "key_command", "exit 3", &have, err), -EKEYREJECTED);
    assert_non_null(strstr(err, "status 3"));
    assert_int_equal(option(&c, "key_command", "echo short", &have, err), -EINVAL);
    assert_null(strstr(err, "short"));
    assert_int_equal(option(&c, "key_env", "PST_TEST_NO_SUCH", &have, err), -EINVAL);
    fchmod(fd, 0644);
    assert_int_equal(option(&c, "key_file", path, &have, err), -EPERM);
    assert_non_null(strstr(err, "chmod 600"));
    assert_int_equal(option(&c, "key_file", "/nonexistent/key", &have, err), -EINVAL);
    assert_int_equal(option(&c, "key_fifo", "x", &have, err), -ENOENT);
    assert_false(have);
    close(fd);
    unlink(path);
}

static int setup(void **state)
{
    (void)state;
    return codec_ctx_init(&cx);
}

static int teardown(void **state)
{
    (void)state;
    codec_ctx_done(&cx);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gcm_is_that_of_nist),
        cmocka_unit_test(the_long_nonce_is_that_of_xaes_256_gcm),
        cmocka_unit_test(every_combination_comes_back_and_is_never_longer),
        cmocka_unit_test(every_flipped_bit_is_refused),
        cmocka_unit_test(a_chunk_cut_short_is_refused),
        cmocka_unit_test(a_chunk_of_another_place_or_key_is_refused),
        cmocka_unit_test(a_chunk_of_a_later_version_is_told_apart_from_a_damaged_one),
        cmocka_unit_test(nonces_of_many_chunks_all_differ),
        cmocka_unit_test(a_header_opens_for_its_object_and_tenant_only),
        cmocka_unit_test(a_rewrapped_header_has_the_same_data_key),
        cmocka_unit_test(keys_come_from_a_file_the_environment_or_a_command),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
