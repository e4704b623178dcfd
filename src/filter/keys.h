/*
 * The keys of `crypt`. A tenant's key wraps the random data key of each object; the wrapped key, the object's header,
 * is kept in an extended attribute of the object. docs/filters.md has the layout.
 */
#ifndef FILTER_KEYS_H
#define FILTER_KEYS_H

#include "seal.h"

#include "store/store.h"

#define KEY_ID       8
#define HEADER_BYTES (4 + KEY_ID + SEAL_NONCE + SEAL_KEY + SEAL_TAG)
#define KEYS_OLD_MAX 4    /* earlier keys of a tenant that may still be in headers */
#define KEY_TEXT_MAX 4096 /* bytes read from a file or a command */

/* Names of attributes that no user sees or sets. */
#define HIDDEN_XATTRS "trusted.penstock."
#define HEADER_XATTR  PST_XATTR_KEY

struct tenant_key {
    uint8_t key[SEAL_KEY], id[KEY_ID];
};

struct keyring {
    struct tenant_key now;
    struct tenant_key old[KEYS_OLD_MAX];
    uint32_t nold;
};

/*
 * An option of the form key_file=PATH, key_env=NAME, key_command=COMMAND, or one of these with old_ before it. 0;
 * -ENOENT: none of them; else err has a line that does not show the key. *have_now: whether the current key is there.
 */
int keyring_option(struct keyring *k, const struct pst_option *o, bool *have_now, char *err, size_t err_size);
void keyring_wipe(struct keyring *k);
/* 32 bytes as they are, or 64 hexadecimal digits with white space around. -EINVAL. */
int key_parse(const uint8_t *text, size_t len, uint8_t ret[SEAL_KEY]);
int tenant_key_init(struct tenant_key *t, const uint8_t key[SEAL_KEY]);

/* Which object a header is for. */
struct header_place {
    uint8_t cont[16];
    uint64_t ino;
};
/* A new random data key, wrapped by the current key. */
int header_make(const struct keyring *k, struct seal *s, const struct header_place *at, uint8_t ret[HEADER_BYTES],
                uint8_t ret_key[SEAL_KEY]);
/* This data key, wrapped by the current key. */
int header_wrap(const struct keyring *k, struct seal *s, const struct header_place *at, const uint8_t key[SEAL_KEY],
                uint8_t ret[HEADER_BYTES]);
/* -EBADMSG: damaged, forged or another object's; -ENOTSUP: a later version; -EKEYREJECTED: by a key that is not here.
 */
int header_open(const struct keyring *k, struct seal *s, const struct header_place *at, const void *header, size_t len,
                uint8_t ret_key[SEAL_KEY], bool *ret_by_old);

#endif
