#include "base/crypto.h"

#include <errno.h>
#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/params.h>
#include <stdlib.h>

struct pst_mac {
    EVP_MAC_CTX *ctx;
};

struct pst_mac *pst_mac_new(const void *key, size_t key_len)
{
    struct pst_mac *m = calloc(1, sizeof *m);
    EVP_MAC *mac = EVP_MAC_fetch(NULL, "HMAC", NULL);
    char digest[] = "SHA256";
    OSSL_PARAM params[] = {OSSL_PARAM_construct_utf8_string(OSSL_MAC_PARAM_DIGEST, digest, 0),
                           OSSL_PARAM_construct_end()};

    if (m && mac)
        m->ctx = EVP_MAC_CTX_new(mac);
    EVP_MAC_free(mac);
    if (!m || !m->ctx || !EVP_MAC_init(m->ctx, key, key_len, params)) {
        pst_mac_free(m);
        return NULL;
    }
    return m;
}

void pst_mac_free(struct pst_mac *m)
{
    if (!m)
        return;
    EVP_MAC_CTX_free(m->ctx);
    free(m);
}

int pst_mac(struct pst_mac *m, const struct pst_bytes *parts, size_t n, uint8_t ret_mac[PST_HMAC_BYTES])
{
    size_t len;

    /* A NULL key keeps the one given at pst_mac_new. */
    if (!EVP_MAC_init(m->ctx, NULL, 0, NULL))
        return -EIO;
    for (size_t i = 0; i < n; i++)
        if (parts[i].len && !EVP_MAC_update(m->ctx, parts[i].data, parts[i].len))
            return -EIO;
    return EVP_MAC_final(m->ctx, ret_mac, &len, PST_HMAC_BYTES) && len == PST_HMAC_BYTES ? 0 : -EIO;
}

int pst_hmac(const void *key, size_t key_len, const struct pst_bytes *parts, size_t n, uint8_t ret_mac[PST_HMAC_BYTES])
{
    struct pst_mac *m = pst_mac_new(key, key_len);
    int r = m ? pst_mac(m, parts, n, ret_mac) : -ENOMEM;
    pst_mac_free(m);
    return r;
}

bool pst_equal_ct(const void *a, const void *b, size_t len)
{
    return CRYPTO_memcmp(a, b, len) == 0;
}

void pst_wipe(void *p, size_t len)
{
    OPENSSL_cleanse(p, len);
}
