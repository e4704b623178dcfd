/*
 * Authenticated encryption with a nonce that may be drawn at random as often as one likes: XAES-256-GCM (C2SP). The
 * first half of the 24 bytes makes, with the key, a key of its own for AES-256-GCM (NIST SP 800-108 with CMAC), the
 * second half is its nonce. By OpenSSL.
 */
#ifndef FILTER_SEAL_H
#define FILTER_SEAL_H

#include <stddef.h>
#include <stdint.h>

#define SEAL_KEY   32
#define SEAL_NONCE 24
#define SEAL_TAG   16
#define GCM_NONCE  12

struct seal; /* contexts of the library; of one thread at a time */
struct seal *seal_new(void);
void seal_free(struct seal *s);

/* in and out may be the same memory, or not overlap. 0, -EIO: the library failed. */
int seal_close(struct seal *s, const uint8_t key[SEAL_KEY], const uint8_t nonce[SEAL_NONCE], const void *aad,
               size_t aad_len, const uint8_t *in, size_t len, uint8_t *out, uint8_t ret_tag[SEAL_TAG]);
/* -EBADMSG: not what was closed with this key, nonce and aad; out is zeroed then. */
int seal_open(struct seal *s, const uint8_t key[SEAL_KEY], const uint8_t nonce[SEAL_NONCE], const void *aad,
              size_t aad_len, const uint8_t *in, size_t len, const uint8_t tag[SEAL_TAG], uint8_t *out);

/* The AES-256-GCM within, for tests against NIST's vectors. */
int seal_gcm(struct seal *s, const uint8_t key[SEAL_KEY], const uint8_t nonce[GCM_NONCE], const void *aad,
             size_t aad_len, const uint8_t *in, size_t len, uint8_t *out, uint8_t ret_tag[SEAL_TAG]);
int seal_gcm_open(struct seal *s, const uint8_t key[SEAL_KEY], const uint8_t nonce[GCM_NONCE], const void *aad,
                  size_t aad_len, const uint8_t *in, size_t len, const uint8_t tag[SEAL_TAG], uint8_t *out);

#endif
