/*
 * Capabilities from a stranger. Inputs that the issuer did not make, and no holder narrowed, are never verified; what
 * is verified is within what was minted.
 */
#include "fuzz.h"

#include "base/crypto.h"
#include "control/cap.h"

#include <stdlib.h>
#include <string.h>

static const uint8_t key[CAP_KEY_BYTES] = "a key that no input will have";

static struct cap_grant grant(uint64_t seed)
{
    return (struct cap_grant){.key_id = seed,
                              .session = {1, 2, 3},
                              .cont = 3 + seed % 5,
                              .ino = seed % 7,
                              .rights = seed % 2 ? CAP_READ : CAP_READ | CAP_WRITE,
                              .range_offset = seed % 4096,
                              .range_length = seed % 3 * 4096,
                              .expires_ns = seed % 5 ? INT64_MAX : (int64_t)seed};
}

size_t fuzz_sample(uint64_t seed, uint8_t *buf, size_t max)
{
    struct cap_grant g = grant(seed);
    struct cap c;

    if (cap_mint(key, &g, &c) || c.len > max)
        return 0;
    memcpy(buf, c.bytes, c.len);
    return c.len;
}

/* Anything goes through verification when its macs are made right: the parser and the folding are reached. */
static void verify_resealed(const uint8_t *data, size_t size)
{
    uint8_t b[CAP_BYTES_MAX], mac[PST_HMAC_BYTES];
    size_t at = 10, end = size - sizeof mac;
    struct cap_grant g;

    memcpy(b, data, size);
    if (pst_hmac(key, sizeof key, &(struct pst_bytes){b, at}, 1, mac))
        return;
    while (at + 2 <= end && at + 2u + b[at + 1] <= end) {
        size_t n = 2u + b[at + 1];
        if (pst_hmac(mac, sizeof mac, &(struct pst_bytes){b + at, n}, 1, mac))
            return;
        at += n;
    }
    memcpy(b + end, mac, sizeof mac);
    if (cap_verify(key, b, size, &g))
        return;
    if (g.rights & ~(CAP_READ | CAP_WRITE) || g.range_length > UINT64_MAX - g.range_offset)
        abort();
    cap_check(&g, 1, 1, CAP_READ, g.range_offset, g.range_length, 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct cap in, out;
    struct cap_grant g, narrow = {.rights = CAP_READ, .ino = 5, .expires_ns = 9};
    uint64_t id;

    if (!cap_verify(key, data, size, &g)) {
        struct cap_grant made = grant(g.key_id);
        /* Only an unaltered sample can be here. */
        if (g.cont != made.cont || g.rights & ~made.rights || g.range_offset < made.range_offset)
            abort();
    }
    cap_key_id(data, size, &id);
    if (size > sizeof in.bytes)
        return 0;
    memcpy(in.bytes, data, size);
    in.len = size;
    if (!cap_narrow(&in, &narrow, &out) && out.len > sizeof out.bytes)
        abort();
    if (size >= 42)
        verify_resealed(data, size);
    return 0;
}
