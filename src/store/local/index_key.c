/* Keys of the index: made of numbers and bytes, and written out for people. */
#include "parts.h"

#include "base/endian.h"

#include <stdio.h>
#include <string.h>

struct key key_begin(enum key_space space)
{
    struct key k;
    k.len = 0;
    key_u8(&k, (uint8_t)space);
    return k;
}

void key_bytes(struct key *k, const void *p, size_t n)
{
    if (n > KEY_MAX - (size_t)k->len)
        abort(); /* names are checked at the door: a longer key is a bug that must not become another key */
    memcpy(k->b + k->len, p, n);
    k->len = (uint16_t)(k->len + n);
}

void key_u8(struct key *k, uint8_t v)
{
    key_bytes(k, &v, 1);
}

void key_u32(struct key *k, uint32_t v)
{
    be32 b = put_be32(v);
    key_bytes(k, &b, sizeof b);
}

void key_u64(struct key *k, uint64_t v)
{
    be64 b = put_be64(v);
    key_bytes(k, &b, sizeof b);
}

void key_text(const void *key, size_t len, char *ret, size_t size)
{
    const uint8_t *p = key;
    size_t at = 0;
    for (size_t i = 0; i < len && at + 5 < size && i < 64; i++)
        at += (size_t)snprintf(ret + at, size - at, p[i] > 32 && p[i] < 127 && p[i] != '\\' ? "%c" : "\\%02x", p[i]);
    ret[at] = 0;
}
