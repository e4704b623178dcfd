/* HMAC-SHA-256 (RFC 2104, by OpenSSL), comparison in constant time. */
#ifndef BASE_CRYPTO_H
#define BASE_CRYPTO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PST_HMAC_BYTES 32

/* Output of HMAC over n parts, as if they were one. 0, or -ENOMEM / -EIO when the library fails. Thread-safe. */
struct pst_bytes {
    const void *data;
    size_t len;
};
int pst_hmac(const void *key, size_t key_len, const struct pst_bytes *parts, size_t n, uint8_t ret_mac[PST_HMAC_BYTES]);

/* Keyed once, used often by one thread: the cost of the key schedule is paid at pst_mac_new only. */
struct pst_mac;
struct pst_mac *pst_mac_new(const void *key, size_t key_len);
void pst_mac_free(struct pst_mac *m);
int pst_mac(struct pst_mac *m, const struct pst_bytes *parts, size_t n, uint8_t ret_mac[PST_HMAC_BYTES]);

bool pst_equal_ct(const void *a, const void *b, size_t len);
/* Overwrites secrets; not optimised away. */
void pst_wipe(void *p, size_t len);

#endif
