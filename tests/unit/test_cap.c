/* Capabilities: the chain cannot be altered, holders can only narrow, checks refuse what is outside. */
#include "control/cap.h"

#include "base/crypto.h"
#include "base/rng.h"
#include "base/util.h"
#include "../lib/seed.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define HEAD 10u
#define MAC  32u
#define ALL  (CAP_READ | CAP_WRITE)

static const uint8_t key[CAP_KEY_BYTES] = "0123456789abcdef0123456789abcde";

static const struct cap_grant full = {.key_id = 0x1122334455667788,
                                      .session = "session-of-16-by",
                                      .tenant = 7,
                                      .cont = 8,
                                      .ino = 9,
                                      .rights = CAP_READ,
                                      .range_offset = 4096,
                                      .range_length = 8192,
                                      .expires_ns = 1000000};
static const struct cap_grant any = {.rights = ALL, .expires_ns = INT64_MAX};

static void assert_same(const struct cap_grant *a, const struct cap_grant *b)
{
    assert_int_equal(a->key_id, b->key_id);
    assert_memory_equal(a->session, b->session, 16);
    assert_int_equal(a->tenant, b->tenant);
    assert_int_equal(a->cont, b->cont);
    assert_int_equal(a->ino, b->ino);
    assert_int_equal(a->rights, b->rights);
    assert_int_equal(a->range_offset, b->range_offset);
    assert_int_equal(a->range_length, b->range_length);
    assert_int_equal(a->expires_ns, b->expires_ns);
}

static void what_is_minted_is_what_is_verified(void **state)
{
    struct cap c;
    struct cap_grant g;
    uint64_t id;
    (void)state;
    assert_int_equal(cap_mint(key, &full, &c), 0);
    assert_true(c.len <= CAP_BYTES_MAX);
    assert_int_equal(cap_key_id(c.bytes, c.len, &id), 0);
    assert_int_equal(id, full.key_id);
    assert_int_equal(cap_verify(key, c.bytes, c.len, &g), 0);
    assert_same(&g, &full);
    assert_int_equal(cap_mint(key, &any, &c), 0);
    assert_int_equal(c.len, HEAD + MAC); /* nothing to say */
    assert_int_equal(cap_verify(key, c.bytes, c.len, &g), 0);
    assert_same(&g, &any);
}

static void the_layout_is_as_documented(void **state)
{
    struct cap c;
    struct cap_grant g = any;
    uint8_t mac[32];
    const uint8_t head[] = {'C', 1, 0, 0, 0, 0, 0, 0, 0, 5}, caveat[] = {4, 8, 0, 0, 0, 0, 0, 0, 1, 0};
    (void)state;
    g.key_id = 5;
    g.ino = 256;
    assert_int_equal(cap_mint(key, &g, &c), 0);
    assert_int_equal(c.len, sizeof head + sizeof caveat + 32);
    assert_memory_equal(c.bytes, head, sizeof head);
    assert_memory_equal(c.bytes + sizeof head, caveat, sizeof caveat);
    pst_hmac(key, sizeof key, &(struct pst_bytes){head, sizeof head}, 1, mac);
    pst_hmac(mac, sizeof mac, &(struct pst_bytes){caveat, sizeof caveat}, 1, mac);
    assert_memory_equal(c.bytes + sizeof head + sizeof caveat, mac, 32);
}

static void another_key_is_refused(void **state)
{
    struct cap c;
    struct cap_grant g;
    uint8_t other[CAP_KEY_BYTES];
    (void)state;
    memcpy(other, key, sizeof key);
    other[31] ^= 1;
    assert_int_equal(cap_mint(key, &full, &c), 0);
    assert_int_equal(cap_verify(other, c.bytes, c.len, &g), -EACCES);
}

static void every_altered_bit_is_refused(void **state)
{
    struct cap c;
    struct cap_grant g = {.ino = 4711};
    (void)state;
    assert_int_equal(cap_mint(key, &full, &c), 0);
    for (size_t bit = 0; bit < c.len * 8; bit++) {
        int r;
        c.bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
        r = cap_verify(key, c.bytes, c.len, &g);
        assert_true(r == -EACCES || r == -EBADMSG);
        c.bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
    assert_int_equal(g.ino, 4711); /* untouched */
}

static void every_truncation_is_refused(void **state)
{
    struct cap c;
    struct cap_grant g;
    (void)state;
    assert_int_equal(cap_mint(key, &full, &c), 0);
    for (size_t n = 0; n < c.len; n++) {
        int r = cap_verify(key, c.bytes, n, &g);
        assert_true(r == -EACCES || r == -EBADMSG);
    }
    c.bytes[c.len] = 0;
    assert_true(cap_verify(key, c.bytes, c.len + 1, &g) < 0);
}

/* Start and length of caveat i. */
static bool caveat_at(const struct cap *c, unsigned i, size_t *ret_at, size_t *ret_n)
{
    size_t at = HEAD;
    while (at < c->len - MAC) {
        size_t n = 2u + c->bytes[at + 1];
        if (!i--) {
            *ret_at = at;
            *ret_n = n;
            return true;
        }
        at += n;
    }
    return false;
}

static void no_caveat_can_be_taken_away(void **state)
{
    struct cap c, cut;
    struct cap_grant g;
    size_t at, n;
    unsigned i = 0;
    (void)state;
    assert_int_equal(cap_mint(key, &full, &c), 0);
    for (; caveat_at(&c, i, &at, &n); i++) {
        cut = c;
        memmove(cut.bytes + at, cut.bytes + at + n, c.len - at - n);
        cut.len -= n;
        assert_int_equal(cap_verify(key, cut.bytes, cut.len, &g), -EACCES);
        /* all from here on gone */
        cut = c;
        memmove(cut.bytes + at, c.bytes + c.len - MAC, MAC);
        cut.len = at + MAC;
        assert_int_equal(cap_verify(key, cut.bytes, cut.len, &g), -EACCES);
    }
    assert_int_equal(i, 7);
}

static void caveats_cannot_change_places_or_be_said_twice(void **state)
{
    struct cap c, x;
    struct cap_grant g;
    size_t at = 0, n = 0;
    (void)state;
    assert_int_equal(cap_mint(key, &full, &c), 0);
    assert_true(caveat_at(&c, 1, &at, &n)); /* tenant, then container: equal lengths */
    x = c;
    memcpy(x.bytes + at, c.bytes + at + n, n);
    memcpy(x.bytes + at + n, c.bytes + at, n);
    assert_int_equal(cap_verify(key, x.bytes, x.len, &g), -EACCES);
    memcpy(x.bytes + at, c.bytes + at, n);
    memcpy(x.bytes + at + n, c.bytes + at, n);
    assert_int_equal(cap_verify(key, x.bytes, x.len, &g), -EACCES);
}

static void a_holder_narrows_without_the_key(void **state)
{
    struct cap c, d;
    struct cap_grant g, n = any;
    (void)state;
    assert_int_equal(cap_mint(key, &any, &c), 0);
    n.ino = 5;
    n.rights = CAP_READ;
    n.range_offset = 100;
    n.range_length = 50;
    n.expires_ns = 77;
    assert_int_equal(cap_narrow(&c, &n, &d), 0);
    assert_int_equal(cap_verify(key, d.bytes, d.len, &g), 0);
    assert_int_equal(g.ino, 5);
    assert_int_equal(g.rights, CAP_READ);
    assert_int_equal(g.range_offset, 100);
    assert_int_equal(g.range_length, 50);
    assert_int_equal(g.expires_ns, 77);
    assert_int_equal(cap_verify(key, c.bytes, c.len, &g), 0); /* the first one stays good */
}

static bool within(const struct cap_grant *in, const struct cap_grant *out)
{
    uint64_t in_end = in->range_length ? in->range_offset + in->range_length : UINT64_MAX;
    uint64_t out_end = out->range_length ? out->range_offset + out->range_length : UINT64_MAX;
    return (!out->tenant || in->tenant == out->tenant) && (!out->cont || in->cont == out->cont) &&
           (!out->ino || in->ino == out->ino) && !(in->rights & ~out->rights) &&
           in->range_offset >= out->range_offset && in_end <= out_end && in->expires_ns <= out->expires_ns;
}

static struct cap_grant random_grant(struct rng *r)
{
    struct cap_grant g = {.rights = (uint32_t)rng_below(r, 4) * 2, .expires_ns = INT64_MAX};
    if (rng_below(r, 2))
        g.tenant = rng_below(r, 2) + 1;
    if (rng_below(r, 2))
        g.cont = rng_below(r, 2) + 1;
    if (rng_below(r, 2))
        g.ino = rng_below(r, 2) + 1;
    if (rng_below(r, 2)) {
        g.range_offset = rng_below(r, 100);
        g.range_length = rng_below(r, 3) ? rng_below(r, 100) : 0;
    }
    if (rng_below(r, 2))
        g.expires_ns = (int64_t)rng_below(r, 100);
    return g;
}

static void narrowing_only_narrows(void **state)
{
    unsigned refused = 0, passed = 0;
    struct rng r;
    (void)state;
    rng_seed(&r, seed_new());
    for (int i = 0; i < 3000; i++) {
        struct cap_grant first = random_grant(&r), second = random_grant(&r), a, b;
        struct cap c, d;
        assert_int_equal(cap_mint(key, &first, &c), 0);
        assert_int_equal(cap_verify(key, c.bytes, c.len, &a), 0);
        assert_int_equal(cap_narrow(&c, &second, &d), 0);
        if (cap_verify(key, d.bytes, d.len, &b)) {
            refused++; /* they exclude each other */
            continue;
        }
        passed++;
        assert_true(within(&b, &a));
        assert_true(within(&b, &second));
    }
    assert_true(refused && passed);
}

static void caveats_that_exclude_each_other_leave_nothing(void **state)
{
    struct cap c, d;
    struct cap_grant g, n;
    (void)state;
    assert_int_equal(cap_mint(key, &full, &c), 0);
    n = any;
    n.ino = 10;
    assert_int_equal(cap_narrow(&c, &n, &d), 0);
    assert_int_equal(cap_verify(key, d.bytes, d.len, &g), -EACCES);
    n = any;
    n.range_offset = 4096 + 8192;
    n.range_length = 1;
    assert_int_equal(cap_narrow(&c, &n, &d), 0);
    assert_int_equal(cap_verify(key, d.bytes, d.len, &g), -EACCES);
    n = any;
    memset(n.session, 'x', 16);
    assert_int_equal(cap_narrow(&c, &n, &d), 0);
    assert_int_equal(cap_verify(key, d.bytes, d.len, &g), -EACCES);
    n = any;
    n.rights = CAP_WRITE; /* reads only so far: no rights, but a grant */
    assert_int_equal(cap_narrow(&c, &n, &d), 0);
    assert_int_equal(cap_verify(key, d.bytes, d.len, &g), 0);
    assert_int_equal(g.rights, 0);
}

static void a_full_capability_takes_no_more(void **state)
{
    struct cap c, d;
    struct cap_grant n = any;
    unsigned count = 0;
    int r;
    (void)state;
    assert_int_equal(cap_mint(key, &any, &c), 0);
    memset(n.session, 's', 16);
    while (!(r = cap_narrow(&c, &n, &d))) {
        c = d;
        assert_true(++count <= CAP_CAVEATS_MAX);
    }
    assert_int_equal(r, -ENOSPC);
    assert_int_equal(count, CAP_CAVEATS_MAX);
    /* one by hand past the limit, with a right mac */
    n = any;
    memmove(d.bytes, c.bytes, c.len);
    uint8_t *at = d.bytes + c.len - MAC, caveat[10] = {4, 8, 0, 0, 0, 0, 0, 0, 0, 1}, mac[32];
    memcpy(mac, at, MAC);
    memcpy(at, caveat, sizeof caveat);
    pst_hmac(mac, MAC, &(struct pst_bytes){caveat, sizeof caveat}, 1, at + sizeof caveat);
    assert_int_equal(cap_verify(key, d.bytes, c.len + sizeof caveat, &n), -EBADMSG);
}

/* A caveat with a right mac whose content is not one we know. */
static int verify_with(const uint8_t *caveat, size_t n)
{
    struct cap c;
    struct cap_grant g;
    uint8_t *at, mac[32];
    assert_int_equal(cap_mint(key, &any, &c), 0);
    at = c.bytes + c.len - MAC;
    memcpy(mac, at, MAC);
    memcpy(at, caveat, n);
    pst_hmac(mac, MAC, &(struct pst_bytes){caveat, n}, 1, at + n);
    return cap_verify(key, c.bytes, c.len + n, &g);
}

static void caveats_that_cannot_be_honoured_are_refused(void **state)
{
    const uint8_t unknown[] = {10, 1, 0}, zero_type[] = {0, 0}, short_ino[] = {4, 4, 0, 0, 0, 1},
                  ino_zero[] = {4, 8, 0, 0, 0, 0, 0, 0, 0, 0},
                  wraps[] = {6, 16, 255, 255, 255, 255, 255, 255, 255, 255, 0, 0, 0, 0, 0, 0, 0, 1},
                  no_session[18] = {1, 16}, good[] = {5, 4, 0, 0, 0, 4};
    (void)state;
    assert_int_equal(verify_with(unknown, sizeof unknown), -EBADMSG);
    assert_int_equal(verify_with(zero_type, sizeof zero_type), -EBADMSG);
    assert_int_equal(verify_with(short_ino, sizeof short_ino), -EBADMSG);
    assert_int_equal(verify_with(ino_zero, sizeof ino_zero), -EBADMSG);
    assert_int_equal(verify_with(wraps, sizeof wraps), -EBADMSG);
    assert_int_equal(verify_with(no_session, sizeof no_session), -EBADMSG);
    assert_int_equal(verify_with(good, sizeof good), 0);
}

/* What an issuer says of whom it is for narrows nothing, and nobody else can say it. */
static void whom_it_is_for_is_the_issuers_word(void **state)
{
    struct pst_cred user = {.uid = 1000, .gid = 100}, got;
    struct cap c, none;
    struct cap_grant g;
    (void)state;

    for (uint32_t n = 0; n <= PST_GROUPS_MAX; n++) {
        user.ngroups = n;
        for (uint32_t i = 0; i < n; i++)
            user.groups[i] = i ? UINT32_MAX - i : 0;
        assert_int_equal(cap_mint_for(key, &full, &user, &c), 0);
        assert_int_equal(cap_verify(key, c.bytes, c.len, &g), 0);
        assert_same(&g, &full);
        memset(&got, 0, sizeof got);
        assert_int_equal(cap_user(c.bytes, c.len, &got), 0);
        assert_memory_equal(&got, &user, 12 + 4 * n);
        for (size_t i = 0; n < 3 && i < c.len * 8; i++) {
            struct cap x = c;
            x.bytes[i / 8] ^= (uint8_t)(1u << i % 8);
            assert_true(cap_verify(key, x.bytes, x.len, &g) < 0);
        }
        n += n > 2 && n < 57 ? 9 : 0;
    }
    user.ngroups = PST_GROUPS_MAX + 1;
    assert_int_equal(cap_mint_for(key, &full, &user, &c), -EINVAL);
    assert_int_equal(cap_mint(key, &any, &none), 0);
    assert_int_equal(cap_user(none.bytes, none.len, &got), -ENODATA);
    assert_int_equal(cap_mint(key, &full, &none), 0);
    assert_int_equal(cap_user(none.bytes, none.len, &got), -ENODATA);
}

/* Behind another caveat, and that is where a holder's are, it is none. */
static void a_holder_cannot_say_whom_it_is_for(void **state)
{
    const uint8_t user[] = {8, 8, 0, 0, 0, 0, 0, 0, 0, 0}, groups[] = {9, 4, 0, 0, 0, 0},
                  odd[] = {8, 10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}, few[] = {8, 4, 0, 0, 0, 0},
                  after[] = {4, 8, 0, 0, 0, 0, 0, 0, 0, 1, 8, 8, 0, 0, 0, 0, 0, 0, 0, 0},
                  twice[] = {8, 8, 0, 0, 0, 0, 0, 0, 0, 0, 8, 8, 0, 0, 0, 0, 0, 0, 0, 0},
                  many[] = {8, 8, 0, 0, 0, 0, 0, 0, 0, 0, 9, 20, 0, 0, 0, 0, 0, 0, 0, 0,
                            0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0};
    (void)state;

    assert_int_equal(verify_with(user, sizeof user), 0);
    assert_int_equal(verify_with(groups, sizeof groups), -EBADMSG);
    assert_int_equal(verify_with(odd, sizeof odd), -EBADMSG);
    assert_int_equal(verify_with(few, sizeof few), -EBADMSG);
    assert_int_equal(verify_with(after, sizeof after), -EBADMSG);
    assert_int_equal(verify_with(twice, sizeof twice), -EBADMSG);
    assert_int_equal(verify_with(many, sizeof many), -EBADMSG);
}

static void nonsense_is_not_minted(void **state)
{
    struct cap c = {.len = 3};
    struct cap_grant g = any;
    (void)state;
    g.rights = 8;
    assert_int_equal(cap_mint(key, &g, &c), -EINVAL);
    g = any;
    g.range_offset = UINT64_MAX;
    g.range_length = 1;
    assert_int_equal(cap_mint(key, &g, &c), -EINVAL);
    assert_int_equal(c.len, 3);
    c.len = sizeof c.bytes + 1;
    assert_int_equal(cap_narrow(&c, &any, &c), -EBADMSG);
}

static void checks_refuse_what_is_outside(void **state)
{
    struct cap_grant g = {
        .cont = 1, .ino = 2, .rights = CAP_READ, .range_offset = 10, .range_length = 10, .expires_ns = 100};
    (void)state;
    assert_int_equal(cap_check(&g, 1, 2, CAP_READ, 10, 10, 99), 0);
    assert_int_equal(cap_check(&g, 1, 2, 0, 20, 0, 99), 0);
    assert_int_equal(cap_check(&g, 1, 2, CAP_READ, 10, 10, 100), -EKEYEXPIRED);
    assert_int_equal(cap_check(&g, 3, 2, CAP_READ, 10, 10, 0), -EACCES);
    assert_int_equal(cap_check(&g, 1, 3, CAP_READ, 10, 10, 0), -EACCES);
    assert_int_equal(cap_check(&g, 1, 2, CAP_WRITE, 10, 10, 0), -EACCES);
    assert_int_equal(cap_check(&g, 1, 2, ALL, 10, 10, 0), -EACCES);
    assert_int_equal(cap_check(&g, 1, 2, CAP_READ, 9, 5, 0), -ERANGE);
    assert_int_equal(cap_check(&g, 1, 2, CAP_READ, 15, 6, 0), -ERANGE);
    assert_int_equal(cap_check(&g, 1, 2, CAP_READ, 21, 0, 0), -ERANGE);
    assert_int_equal(cap_check(&g, 1, 2, CAP_READ, 15, UINT64_MAX, 0), -ERANGE);
    assert_int_equal(cap_check(&any, 99, 98, ALL, UINT64_MAX - 1, 1, INT64_MAX - 1), 0);
    assert_int_equal(cap_check(&any, 99, 98, ALL, UINT64_MAX, 1, 0), -ERANGE);
    g.range_length = 0;
    assert_int_equal(cap_check(&g, 1, 2, CAP_READ, 1ull << 60, 1, 0), 0);
    assert_int_equal(cap_check(&g, 1, 2, CAP_READ, 9, 1, 0), -ERANGE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_minted_is_what_is_verified),
        cmocka_unit_test(the_layout_is_as_documented),
        cmocka_unit_test(another_key_is_refused),
        cmocka_unit_test(every_altered_bit_is_refused),
        cmocka_unit_test(every_truncation_is_refused),
        cmocka_unit_test(no_caveat_can_be_taken_away),
        cmocka_unit_test(caveats_cannot_change_places_or_be_said_twice),
        cmocka_unit_test(a_holder_narrows_without_the_key),
        cmocka_unit_test(narrowing_only_narrows),
        cmocka_unit_test(caveats_that_exclude_each_other_leave_nothing),
        cmocka_unit_test(a_full_capability_takes_no_more),
        cmocka_unit_test(caveats_that_cannot_be_honoured_are_refused),
        cmocka_unit_test(whom_it_is_for_is_the_issuers_word),
        cmocka_unit_test(a_holder_cannot_say_whom_it_is_for),
        cmocka_unit_test(nonsense_is_not_minted),
        cmocka_unit_test(checks_refuse_what_is_outside),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
