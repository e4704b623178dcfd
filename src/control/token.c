/* Token files: whoever may read the server's file is let in over loopback and Unix sockets. */
#include "control/tls.h"

#include "base/crypto.h"
#include "base/rng.h"
#include "base/secret.h"
#include "base/util.h"
#include "control/rpc.h"

#include <errno.h>
#include <fcntl.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

int token_hash(const char *token, uint8_t ret_hash[32])
{
    return EVP_Digest(token, strlen(token), ret_hash, NULL, EVP_sha256(), NULL) == 1 ? 0 : -EIO;
}

static void to_hex(const uint8_t *p, size_t n, char *ret)
{
    for (size_t i = 0; i < n; i++)
        sprintf(ret + 2 * i, "%02x", p[i]);
}

/* Where it is; *ret_private: others may not even look into it. */
static int dir_name(char *ret_dir, size_t size, bool *ret_private)
{
    const char *own = getenv("PENSTOCK_RUN_DIR"), *xdg = getenv("XDG_RUNTIME_DIR");
    int n;

    *ret_private = false;
    if (own && *own == '/') {
        n = snprintf(ret_dir, size, "%s", own);
    } else if (!geteuid()) {
        n = snprintf(ret_dir, size, "/run/penstock");
    } else if (xdg && *xdg == '/') {
        n = snprintf(ret_dir, size, "%s/penstock", xdg);
    } else {
        n = snprintf(ret_dir, size, "/tmp/penstock-%u", (unsigned)geteuid());
        *ret_private = true;
    }
    return n < 0 || (size_t)n >= size ? -ENAMETOOLONG : 0;
}

/* The caller's own, and nobody else puts files into it. */
static int check_dir(const char *dir, bool private)
{
    struct stat st;

    if (lstat(dir, &st))
        return -errno;
    return S_ISDIR(st.st_mode) && st.st_uid == geteuid() && !(st.st_mode & (private ? 077 : 022)) ? 0 : -EPERM;
}

int token_run_dir(char *ret_dir, size_t size)
{
    bool private;
    int r = dir_name(ret_dir, size, &private);

    if (!r && mkdir(ret_dir, 0700) && errno != EEXIST)
        r = -errno;
    return r ? r : check_dir(ret_dir, private);
}

/* "DIR/4711.token"; a Unix socket goes by a hash of its path. */
static int token_path(const char *dir, const char *addr, int port, char *ret, size_t size)
{
    uint8_t h[32];
    char hex[17];
    int n, r;

    if (!strncmp(addr, "unix:", 5)) {
        r = token_hash(addr + 5, h);
        if (r)
            return r;
        to_hex(h, 8, hex);
        n = snprintf(ret, size, "%s/unix-%s.token", dir, hex);
    } else {
        n = snprintf(ret, size, "%s/%d.token", dir, port);
    }
    return n > 0 && (size_t)n < size ? 0 : -ENAMETOOLONG;
}

int token_create(const char *addr, int port, char ret_token[TOKEN_BYTES])
{
    char dir[200], path[300], tmp[320], token[TOKEN_BYTES];
    uint8_t secret[32];
    cleanup_close int fd = -1;
    int r = token_run_dir(dir, sizeof dir);

    if (!r)
        r = token_path(dir, addr, port, path, sizeof path);
    if (r)
        return r;
    rng_secret(secret, sizeof secret);
    to_hex(secret, sizeof secret, token);
    snprintf(tmp, sizeof tmp, "%s.%d", path, (int)getpid());
    unlink(tmp);
    fd = open(tmp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0)
        return -errno;
    if (write(fd, token, TOKEN_BYTES - 1) != TOKEN_BYTES - 1 || rename(tmp, path)) {
        r = errno ? -errno : -EIO;
        unlink(tmp);
        return r;
    }
    memcpy(ret_token, token, TOKEN_BYTES);
    return 0;
}

void token_remove(const char *addr, int port)
{
    char dir[200], path[300];
    if (!token_run_dir(dir, sizeof dir) && !token_path(dir, addr, port, path, sizeof path))
        unlink(path);
}

static int read_token(const char *dir, const char *addr, int port, char ret_token[TOKEN_BYTES])
{
    char path[300], token[TOKEN_BYTES] = "";
    cleanup_close int fd = -1;
    struct stat st;
    int r = token_path(dir, addr, port, path, sizeof path);

    if (r)
        return r;
    fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0)
        return -errno;
    if (fstat(fd, &st))
        return -errno;
    /* Someone else's file would send our requests, and what they carry, to someone else's server. */
    if (!S_ISREG(st.st_mode) || (st.st_uid != geteuid() && st.st_uid != 0) || st.st_mode & 077)
        return -EPERM;
    if (read(fd, token, TOKEN_BYTES - 1) != TOKEN_BYTES - 1 || strspn(token, "0123456789abcdef") != TOKEN_BYTES - 1)
        return -EBADMSG;
    memcpy(ret_token, token, TOKEN_BYTES);
    return 0;
}

int token_find(const char *addr, char ret_token[TOKEN_BYTES])
{
    char dir[200];
    bool private;
    int r, port = rpc_addr_port(addr);

    if (port < 0 || !rpc_addr_is_local(addr))
        return port < 0 ? port : -ENOENT;
    r = dir_name(dir, sizeof dir, &private);
    if (!r)
        r = check_dir(dir, private);
    if (!r)
        r = read_token(dir, addr, port, ret_token);
    if (r && strcmp(dir, "/run/penstock")) {
        int system = read_token("/run/penstock", addr, port, ret_token);
        r = system ? r : 0;
    }
    return r;
}

int token_to_show(const char *addr, const char *file, char *ret, char *err, size_t err_size)
{
    int r = 0;

    ret[0] = '\0';
    if (file)
        r = secret_token_to_show(file, ret, err, err_size);
    else if (token_find(addr, ret) < 0)
        ret[0] = '\0';
    return r < 0 ? r : 0;
}
