/*
 * Capabilities (contract 4): chained HMACs, as macaroons (Birgisson et al., NDSS 2014). Pure.
 *
 *   mac_0 = HMAC(key, header)   mac_i = HMAC(mac_(i-1), caveat_i)   the last mac is sent, the others are not
 *
 * so a holder can append a caveat, which only narrows, and cannot take one away. The issuer knows the key of the key id
 * in the header; keys are per session and container and end with them.
 */
#ifndef CONTROL_CAP_H
#define CONTROL_CAP_H

#include "store/types.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CAP_BYTES_MAX   1024u
#define CAP_CAVEATS_MAX 16u /* besides whom it is for */
#define CAP_KEY_BYTES   32u
#define CAP_READ        4u
#define CAP_WRITE       2u

/* What a capability allows, all caveats together. */
struct cap_grant {
    uint64_t key_id;
    uint8_t session[16];
    uint64_t tenant;
    uint64_t cont;
    uint64_t ino;       /* 0: any */
    uint32_t rights;    /* CAP_* */
    uint64_t range_offset, range_length; /* length 0: no limit */
    int64_t expires_ns; /* wall clock of the issuer; INT64_MAX: never */
};

struct cap {
    uint8_t bytes[CAP_BYTES_MAX];
    size_t len;
};

/* Mints one with the grant's caveats (those that are not "any"). */
int cap_mint(const uint8_t key[CAP_KEY_BYTES], const struct cap_grant *g, struct cap *ret);
/*
 * The same, and it says whom it was granted to: nothing for cap_verify, but for an issuer who has to ask somebody else
 * in that user's name. The issuer's word comes first in the chain: a holder cannot add or change it. user NULL: none.
 */
int cap_mint_for(const uint8_t key[CAP_KEY_BYTES], const struct cap_grant *g, const struct pst_cred *user,
                 struct cap *ret);
/* Whom a capability that cap_verify has accepted was granted to; -ENODATA: it does not say. */
int cap_user(const void *bytes, size_t len, struct pst_cred *ret);
/*
 * A holder's narrowing; -ENOSPC when full. Only fields that narrow are written; `any` values leave things as they are.
 */
int cap_narrow(const struct cap *in, const struct cap_grant *g, struct cap *ret);
/* Key id of a well-formed capability, unverified: to find the key. -EBADMSG. */
int cap_key_id(const void *bytes, size_t len, uint64_t *ret_key_id);
/*
 * Verifies the chain and folds the caveats. -EBADMSG malformed; -EACCES wrong mac, or caveats that leave nothing.
 * Does not look at clocks.
 */
int cap_verify(const uint8_t key[CAP_KEY_BYTES], const void *bytes, size_t len, struct cap_grant *ret);
/* Does a verified grant allow this? 0; -EACCES rights, object or container; -ERANGE range; -EKEYEXPIRED. */
int cap_check(const struct cap_grant *g, uint64_t cont, uint64_t ino, uint32_t rights, uint64_t offset,
              uint64_t length, int64_t now_wall_ns);

#endif
