#include "seal.h"

#include "base/crypto.h"

#include <errno.h>
#include <limits.h>
#include <openssl/evp.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define BLOCK 16

struct seal {
    EVP_CIPHER *gcm, *ecb;
    EVP_CIPHER_CTX *gcm_ctx, *ecb_ctx;
};

struct seal *seal_new(void)
{
    struct seal *s = calloc(1, sizeof *s);

    if (!s)
        return NULL;
    s->gcm = EVP_CIPHER_fetch(NULL, "AES-256-GCM", NULL);
    s->ecb = EVP_CIPHER_fetch(NULL, "AES-256-ECB", NULL);
    s->gcm_ctx = EVP_CIPHER_CTX_new();
    s->ecb_ctx = EVP_CIPHER_CTX_new();
    if (!s->gcm || !s->ecb || !s->gcm_ctx || !s->ecb_ctx) {
        seal_free(s);
        return NULL;
    }
    return s;
}

void seal_free(struct seal *s)
{
    if (!s)
        return;
    EVP_CIPHER_CTX_free(s->gcm_ctx);
    EVP_CIPHER_CTX_free(s->ecb_ctx);
    EVP_CIPHER_free(s->gcm);
    EVP_CIPHER_free(s->ecb);
    free(s);
}

int seal_gcm(struct seal *s, const uint8_t key[SEAL_KEY], const uint8_t nonce[GCM_NONCE], const void *aad,
             size_t aad_len, const uint8_t *in, size_t len, uint8_t *out, uint8_t ret_tag[SEAL_TAG])
{
    EVP_CIPHER_CTX *x = s->gcm_ctx;
    uint8_t end[BLOCK];
    int n;

    if (len > INT_MAX || aad_len > INT_MAX)
        return -EMSGSIZE;
    if (!EVP_EncryptInit_ex2(x, s->gcm, key, nonce, NULL) ||
        (aad_len && !EVP_EncryptUpdate(x, NULL, &n, aad, (int)aad_len)) ||
        (len && !EVP_EncryptUpdate(x, out, &n, in, (int)len)) || !EVP_EncryptFinal_ex(x, end, &n) ||
        !EVP_CIPHER_CTX_ctrl(x, EVP_CTRL_AEAD_GET_TAG, SEAL_TAG, ret_tag))
        return -EIO;
    return 0;
}

int seal_gcm_open(struct seal *s, const uint8_t key[SEAL_KEY], const uint8_t nonce[GCM_NONCE], const void *aad,
                  size_t aad_len, const uint8_t *in, size_t len, const uint8_t tag[SEAL_TAG], uint8_t *out)
{
    EVP_CIPHER_CTX *x = s->gcm_ctx;
    uint8_t want[SEAL_TAG], end[BLOCK];
    int n;

    if (len > INT_MAX || aad_len > INT_MAX)
        return -EMSGSIZE;
    memcpy(want, tag, sizeof want);
    if (!EVP_DecryptInit_ex2(x, s->gcm, key, nonce, NULL) ||
        (aad_len && !EVP_DecryptUpdate(x, NULL, &n, aad, (int)aad_len)) ||
        (len && !EVP_DecryptUpdate(x, out, &n, in, (int)len)) ||
        !EVP_CIPHER_CTX_ctrl(x, EVP_CTRL_AEAD_SET_TAG, SEAL_TAG, want))
        return -EIO;
    if (EVP_DecryptFinal_ex(x, end, &n) <= 0) {
        memset(out, 0, len); /* what was not authenticated is shown to nobody */
        return -EBADMSG;
    }
    return 0;
}

/* C2SP XAES-256-GCM: K1 as in CMAC, then two blocks of counter 1 and 2, label 'X', and the nonce's first half. */
static int derive(struct seal *s, const uint8_t key[SEAL_KEY], const uint8_t nonce[GCM_NONCE], uint8_t ret[SEAL_KEY])
{
    uint8_t k1[BLOCK] = {0}, m[2 * BLOCK] = {0}, carry;
    int n;
    bool ok = EVP_EncryptInit_ex2(s->ecb_ctx, s->ecb, key, NULL, NULL) && EVP_CIPHER_CTX_set_padding(s->ecb_ctx, 0) &&
              EVP_EncryptUpdate(s->ecb_ctx, k1, &n, k1, BLOCK);

    carry = k1[0] >> 7;
    for (int i = 0; i < BLOCK; i++)
        k1[i] = (uint8_t)(k1[i] << 1 | (i + 1 < BLOCK ? k1[i + 1] >> 7 : 0));
    k1[BLOCK - 1] ^= (uint8_t)(carry * 0x87);
    for (int i = 0; i < 2; i++) {
        uint8_t *b = m + i * BLOCK;
        b[1] = (uint8_t)(i + 1);
        b[2] = 'X';
        memcpy(b + 4, nonce, GCM_NONCE);
        for (int k = 0; k < BLOCK; k++)
            b[k] ^= k1[k];
    }
    ok = ok && EVP_EncryptUpdate(s->ecb_ctx, ret, &n, m, 2 * BLOCK) && n == 2 * BLOCK;
    pst_wipe(k1, sizeof k1);
    return ok ? 0 : -EIO;
}

int seal_close(struct seal *s, const uint8_t key[SEAL_KEY], const uint8_t nonce[SEAL_NONCE], const void *aad,
               size_t aad_len, const uint8_t *in, size_t len, uint8_t *out, uint8_t ret_tag[SEAL_TAG])
{
    uint8_t k[SEAL_KEY];
    int r = derive(s, key, nonce, k);

    if (!r)
        r = seal_gcm(s, k, nonce + GCM_NONCE, aad, aad_len, in, len, out, ret_tag);
    pst_wipe(k, sizeof k);
    return r;
}

int seal_open(struct seal *s, const uint8_t key[SEAL_KEY], const uint8_t nonce[SEAL_NONCE], const void *aad,
              size_t aad_len, const uint8_t *in, size_t len, const uint8_t tag[SEAL_TAG], uint8_t *out)
{
    uint8_t k[SEAL_KEY];
    int r = derive(s, key, nonce, k);

    if (!r)
        r = seal_gcm_open(s, k, nonce + GCM_NONCE, aad, aad_len, in, len, tag, out);
    pst_wipe(k, sizeof k);
    return r;
}
