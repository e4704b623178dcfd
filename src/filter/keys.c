#include "keys.h"

#include "base/crypto.h"
#include "base/err.h"
#include "base/rng.h"
#include "base/secret.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>

#define KEY_WAIT_NS (60 * NSEC_PER_SEC) /* a command that asks a key server has so long */

extern char **environ;

static int nibble(uint8_t c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

int key_parse(const uint8_t *text, size_t len, uint8_t ret[SEAL_KEY])
{
    uint8_t key[SEAL_KEY];

    if (len == SEAL_KEY) {
        memcpy(ret, text, SEAL_KEY);
        return 0;
    }
    while (len && isspace(text[0])) {
        text++;
        len--;
    }
    while (len && isspace(text[len - 1]))
        len--;
    if (len != 2 * SEAL_KEY)
        return -EINVAL;
    for (size_t i = 0; i < SEAL_KEY; i++) {
        int a = nibble(text[2 * i]), b = nibble(text[2 * i + 1]);
        if (a < 0 || b < 0) {
            pst_wipe(key, sizeof key);
            return -EINVAL;
        }
        key[i] = (uint8_t)(a << 4 | b);
    }
    memcpy(ret, key, SEAL_KEY);
    pst_wipe(key, sizeof key);
    return 0;
}

int tenant_key_init(struct tenant_key *t, const uint8_t key[SEAL_KEY])
{
    uint8_t mac[PST_HMAC_BYTES];
    const struct pst_bytes what = {"penstock key id 1", 17};
    int r = pst_hmac(key, SEAL_KEY, &what, 1, mac);

    if (r)
        return r;
    memcpy(t->key, key, SEAL_KEY);
    memcpy(t->id, mac, KEY_ID);
    return 0;
}

void keyring_wipe(struct keyring *k)
{
    pst_wipe(k, sizeof *k);
}

/* ---- where keys come from ---- */

/* Up to the end, or KEY_TEXT_MAX bytes (-EINVAL past them). */
static int64_t read_text(int fd, uint8_t text[KEY_TEXT_MAX])
{
    uint64_t end = now_ns() + KEY_WAIT_NS;
    size_t len = 0;

    for (;;) {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        uint64_t now = now_ns();
        ssize_t n;
        if (now >= end || poll(&p, 1, (int)((end - now) / NSEC_PER_MSEC) + 1) == 0)
            return -ETIMEDOUT;
        n = read(fd, text + len, KEY_TEXT_MAX - len);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return n < 0 ? -errno : (int64_t)len;
        len += (size_t)n;
        if (len == KEY_TEXT_MAX)
            return -EINVAL;
    }
}

static int64_t from_env(const char *name, uint8_t text[KEY_TEXT_MAX], char *err, size_t err_size)
{
    const char *v = getenv(name);
    size_t n = v ? strlen(v) : 0;

    if (!n || n > KEY_TEXT_MAX) {
        snprintf(err, err_size, "key_env: the environment has no key in %.60s", name);
        return -ENOENT;
    }
    memcpy(text, v, n);
    return (int64_t)n;
}

static int64_t from_command(const char *command, uint8_t text[KEY_TEXT_MAX], char *err, size_t err_size)
{
    char sh[] = "sh", dash_c[] = "-c";
    cleanup_free char *copy = strdup(command);
    char *argv[] = {sh, dash_c, copy, NULL};
    posix_spawn_file_actions_t fa;
    int fd[2], st = -1, e;
    int64_t n;
    pid_t pid;

    if (!copy || pipe2(fd, O_CLOEXEC) < 0)
        return -ENOMEM;
    posix_spawn_file_actions_init(&fa);
    posix_spawn_file_actions_adddup2(&fa, fd[1], 1);
    e = posix_spawn(&pid, "/bin/sh", &fa, NULL, argv, environ);
    posix_spawn_file_actions_destroy(&fa);
    close(fd[1]);
    n = e ? -e : read_text(fd[0], text);
    close(fd[0]);
    if (n < 0 && !e)
        kill(pid, SIGKILL);
    while (!e && waitpid(pid, &st, 0) < 0 && errno == EINTR)
        ;
    if (n < 0)
        snprintf(err, err_size, "key_command: %s", err_text((int)n));
    else if (!WIFEXITED(st) || WEXITSTATUS(st) != 0) {
        snprintf(err, err_size, "key_command failed with status %d", WIFEXITED(st) ? WEXITSTATUS(st) : -1);
        n = -EKEYREJECTED;
    }
    return n;
}

static int load(const char *how, const char *value, struct tenant_key *ret, char *err, size_t err_size)
{
    uint8_t text[KEY_TEXT_MAX], key[SEAL_KEY];
    int64_t n = !strcmp(how, "file")  ? secret_bytes("key file", value, text, sizeof text, err, err_size)
                : !strcmp(how, "env") ? from_env(value, text, err, err_size)
                                      : from_command(value, text, err, err_size);
    int r = n < 0 ? (int)n : key_parse(text, (size_t)n, key);

    if (n >= 0 && r)
        snprintf(err, err_size, "key_%s: a key is 32 bytes, or 64 hexadecimal digits", how);
    if (!r) {
        r = tenant_key_init(ret, key);
        if (r)
            snprintf(err, err_size, "the key cannot be used: %s", err_text(r));
    }
    pst_wipe(text, sizeof text);
    pst_wipe(key, sizeof key);
    return r;
}

int keyring_option(struct keyring *k, const struct pst_option *o, bool *have_now, char *err, size_t err_size)
{
    bool old = !strncmp(o->key, "old_key_", 8);
    const char *how = o->key + (old ? 8 : 4);
    int r;

    if ((!old && strncmp(o->key, "key_", 4)) || (strcmp(how, "file") && strcmp(how, "env") && strcmp(how, "command")))
        return -ENOENT;
    if (old ? k->nold == KEYS_OLD_MAX : *have_now) {
        snprintf(err, err_size, old ? "more than %d old keys" : "more than one key", KEYS_OLD_MAX);
        return -EINVAL;
    }
    r = load(how, o->value, old ? &k->old[k->nold] : &k->now, err, err_size);
    if (r)
        return r == -ENOENT ? -EINVAL : r;
    k->nold += old;
    *have_now |= !old;
    return 0;
}

/* ---- headers: version u8, 3 zeroes, key id, nonce, wrapped data key, tag ---- */

#define HEADER_VERSION 1u
#define HEAD           (4 + KEY_ID)
#define AAD_BYTES      (8 + 16 + 8 + HEAD)

static void put_aad(uint8_t aad[AAD_BYTES], const struct header_place *at, const uint8_t *header)
{
    memcpy(aad, "pstobjt1", 8);
    memcpy(aad + 8, at->cont, 16);
    for (int i = 0; i < 8; i++)
        aad[24 + i] = (uint8_t)(at->ino >> 8 * i);
    memcpy(aad + 32, header, HEAD);
}

int header_wrap(const struct keyring *k, struct seal *s, const struct header_place *at, const uint8_t key[SEAL_KEY],
                uint8_t ret[HEADER_BYTES])
{
    const struct tenant_key *t = &k->now;
    uint8_t aad[AAD_BYTES], h[HEADER_BYTES] = {HEADER_VERSION};
    uint8_t *nonce = h + HEAD, *wrapped = nonce + SEAL_NONCE;
    int r;

    memcpy(h + 4, t->id, KEY_ID);
    rng_secret(nonce, SEAL_NONCE);
    put_aad(aad, at, h);
    r = seal_close(s, t->key, nonce, aad, sizeof aad, key, SEAL_KEY, wrapped, wrapped + SEAL_KEY);
    if (!r)
        memcpy(ret, h, sizeof h);
    return r;
}

int header_make(const struct keyring *k, struct seal *s, const struct header_place *at, uint8_t ret[HEADER_BYTES],
                uint8_t ret_key[SEAL_KEY])
{
    rng_secret(ret_key, SEAL_KEY);
    return header_wrap(k, s, at, ret_key, ret);
}

static const struct tenant_key *key_of(const struct keyring *k, const uint8_t *id)
{
    if (!memcmp(k->now.id, id, KEY_ID))
        return &k->now;
    for (uint32_t i = 0; i < k->nold; i++)
        if (!memcmp(k->old[i].id, id, KEY_ID))
            return &k->old[i];
    return NULL;
}

int header_open(const struct keyring *k, struct seal *s, const struct header_place *at, const void *header, size_t len,
                uint8_t ret_key[SEAL_KEY], bool *ret_by_old)
{
    const uint8_t *h = header, *nonce = h + HEAD, *wrapped = nonce + SEAL_NONCE;
    uint8_t aad[AAD_BYTES], key[SEAL_KEY];
    const struct tenant_key *t;
    int r;

    if (len && h[0] != HEADER_VERSION)
        return -ENOTSUP;
    if (len != HEADER_BYTES || h[1] || h[2] || h[3])
        return -EBADMSG;
    t = key_of(k, h + 4);
    if (!t)
        return -EKEYREJECTED;
    put_aad(aad, at, h);
    r = seal_open(s, t->key, nonce, aad, sizeof aad, wrapped, SEAL_KEY, wrapped + SEAL_KEY, key);
    if (r)
        return r;
    memcpy(ret_key, key, SEAL_KEY);
    *ret_by_old = t != &k->now;
    pst_wipe(key, sizeof key);
    return 0;
}
