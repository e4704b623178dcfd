/*
 * Integers as they lie on a wire or a disk, wrapped in structs so that a missed swap does not compile.
 * be*: big-endian (wire, index keys). le*: little-endian (on-disk records). All are byte arrays: no alignment needed.
 */
#ifndef BASE_ENDIAN_H
#define BASE_ENDIAN_H

#include <stdint.h>
#include <string.h>

#define BASE_DEFINE_BYTES(name, bytes)                                                                                 \
    typedef struct {                                                                                                   \
        uint8_t b[bytes];                                                                                              \
    } name
BASE_DEFINE_BYTES(be16, 2);
BASE_DEFINE_BYTES(be24, 3);
BASE_DEFINE_BYTES(be32, 4);
BASE_DEFINE_BYTES(be64, 8);
BASE_DEFINE_BYTES(le16, 2);
BASE_DEFINE_BYTES(le32, 4);
BASE_DEFINE_BYTES(le64, 8);
#undef BASE_DEFINE_BYTES

#define BASE_DEFINE_SWAP(bits, host, to_be, to_le)                                                                     \
    static inline be##bits put_be##bits(uint##bits##_t v)                                                              \
    {                                                                                                                  \
        be##bits r;                                                                                                    \
        v = to_be(v);                                                                                                  \
        memcpy(r.b, &v, sizeof v);                                                                                     \
        return r;                                                                                                      \
    }                                                                                                                  \
    static inline uint##bits##_t get_be##bits(be##bits x)                                                              \
    {                                                                                                                  \
        uint##bits##_t v;                                                                                              \
        memcpy(&v, x.b, sizeof v);                                                                                     \
        return to_be(v);                                                                                               \
    }                                                                                                                  \
    static inline le##bits put_le##bits(uint##bits##_t v)                                                              \
    {                                                                                                                  \
        le##bits r;                                                                                                    \
        v = to_le(v);                                                                                                  \
        memcpy(r.b, &v, sizeof v);                                                                                     \
        return r;                                                                                                      \
    }                                                                                                                  \
    static inline uint##bits##_t get_le##bits(le##bits x)                                                              \
    {                                                                                                                  \
        uint##bits##_t v;                                                                                              \
        memcpy(&v, x.b, sizeof v);                                                                                     \
        return to_le(v);                                                                                               \
    }

#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#define BASE_ID16(v) (v)
#define BASE_ID32(v) (v)
#define BASE_ID64(v) (v)
BASE_DEFINE_SWAP(16, uint16_t, __builtin_bswap16, BASE_ID16)
BASE_DEFINE_SWAP(32, uint32_t, __builtin_bswap32, BASE_ID32)
BASE_DEFINE_SWAP(64, uint64_t, __builtin_bswap64, BASE_ID64)
#else
#error "big-endian hosts are not supported yet"
#endif
#undef BASE_DEFINE_SWAP

static inline be24 put_be24(uint32_t v)
{
    return (be24){{(uint8_t)(v >> 16), (uint8_t)(v >> 8), (uint8_t)v}};
}

static inline uint32_t get_be24(be24 x)
{
    return (uint32_t)x.b[0] << 16 | (uint32_t)x.b[1] << 8 | x.b[2];
}

#endif
