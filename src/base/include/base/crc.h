/* CRC-32C (Castagnoli, RFC 3720), by ISA-L. */
#ifndef BASE_CRC_H
#define BASE_CRC_H

#include <stddef.h>
#include <stdint.h>

/* Standard form: start with crc = 0, feed the result back in to go on. crc32c(0, "123456789", 9) = 0xe3069283. */
uint32_t crc32c(uint32_t crc, const void *data, size_t len);

#endif
