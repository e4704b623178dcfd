/* Numbers as people write them, in options and configuration. 0, or -EINVAL. */
#ifndef BASE_PARSE_H
#define BASE_PARSE_H

#include <stdint.h>

/* Digits only. */
int parse_uint(const char *s, uint64_t *ret);
/* "4096", "64K", "1.5GiB": K, M, G, T, P are powers of 1024. */
int parse_size(const char *s, uint64_t *ret);
/* A decimal number, perhaps with a fraction; *ret_rest is behind it. */
int parse_decimal(const char *s, double *ret, const char **ret_rest);

#endif
