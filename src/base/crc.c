#include "base/crc.h"

#include <isa-l/crc.h>

uint32_t crc32c(uint32_t crc, const void *data, size_t len)
{
    /* ISA-L takes an int length and a mutable pointer, and leaves both inversions to the caller. */
    const unsigned char *p = data;
    crc = ~crc;
    while (len) {
        int n = len > (1 << 30) ? 1 << 30 : (int)len;
        crc = crc32_iscsi((unsigned char *)(uintptr_t)p, n, crc);
        p += n;
        len -= (size_t)n;
    }
    return ~crc;
}
