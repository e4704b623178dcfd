#include "base/secret.h"

#include "base/crypto.h"
#include "base/err.h"
#include "base/open.h"
#include "base/util.h"

#include <errno.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define PIECE_WAIT_MS 5000
#define OTHERS        077 /* what others must not be able to do with a secret of ours */
#define OTHERS_WRITE  022
#define LINE_MAX_BYTES (SECRET_TOKEN_MAX + 2) /* with its end */

static int failed(int e, const char *what, const char *path, char *err, size_t err_size)
{
    snprintf(err, err_size, "%s %.150s: %s", what, path,
             e == -ENODATA ? "nobody has written into it for five seconds" : err_text(e));
    return e;
}

static int refused(const char *why, const char *what, const char *path, char *err, size_t err_size)
{
    snprintf(err, err_size, "%s %.150s: %s", what, path, why);
    return -EINVAL;
}

static int open_private(const char *what, const char *path, mode_t never, char *err, size_t err_size)
{
    int fd = open_setting(path), r;
    struct stat st;

    if (fd < 0)
        return failed(fd, what, path, err, err_size);
    r = fstat(fd, &st) < 0 ? -errno : 0;
    if (r < 0) {
        failed(r, what, path, err, err_size);
    } else if ((S_ISREG(st.st_mode) || S_ISFIFO(st.st_mode)) && st.st_mode & never) {
        snprintf(err, err_size, "%s %.150s may be %s by others: chmod 600 it", what, path,
                 never == OTHERS_WRITE ? "written" : "read");
        r = -EPERM;
    }
    if (r == 0)
        return fd;
    close(fd);
    return r;
}

/* Up to the end, or `size` bytes, or a line's end if that is enough. */
static int64_t read_up_to(int fd, uint8_t *ret, size_t size, bool line)
{
    size_t len = 0;

    while (len < size && !(line && memchr(ret, '\n', len))) {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        ssize_t n = poll(&p, 1, PIECE_WAIT_MS);
        if (n == 0)
            return -ENODATA;
        n = n < 0 ? n : read(fd, ret + len, size - len);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -errno;
        if (n == 0)
            break;
        len += (size_t)n;
    }
    return (int64_t)len;
}

int64_t secret_bytes(const char *what, const char *path, void *ret, size_t size, char *err, size_t err_size)
{
    cleanup_close int fd = open_private(what, path, OTHERS, err, err_size);
    uint8_t more;
    int64_t n;

    if (fd < 0)
        return fd;
    n = read_up_to(fd, ret, size, false);
    if (n == (int64_t)size && read_up_to(fd, &more, 1, false) > 0)
        return refused("it is too long", what, path, err, err_size);
    if (n == 0)
        return refused("it is empty", what, path, err, err_size);
    return n < 0 ? failed((int)n, what, path, err, err_size) : n;
}

/* NULL: it may be one. */
static const char *no_token(const char *s, size_t n)
{
    if (n == 0)
        return "its first line is empty";
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)s[i] < 0x20 || s[i] == 0x7f)
            return "its first line has a character that is none of a token";
    if (n < SECRET_TOKEN_MIN)
        return "its first line must have at least 16 characters";
    if (n > SECRET_TOKEN_MAX)
        return "its first line has more than 512 characters";
    return s[0] == ' ' || s[n - 1] == ' ' ? "its first line begins or ends with a blank" : NULL;
}

static int read_token(const char *path, mode_t never, char ret[SECRET_TOKEN_MAX + 1], char *err, size_t err_size)
{
    static const char what[] = "token file";
    cleanup_close int fd = open_private(what, path, never, err, err_size);
    char line[LINE_MAX_BYTES];
    const char *end, *why;
    int64_t n;

    if (fd < 0)
        return fd;
    n = read_up_to(fd, (uint8_t *)line, sizeof line, true);
    if (n < 0) {
        pst_wipe(line, sizeof line);
        return failed((int)n, what, path, err, err_size);
    }
    end = memchr(line, '\n', (size_t)n);
    if (end) {
        n = end - line;
        n -= n > 0 && line[n - 1] == '\r';
    }
    why = no_token(line, (size_t)n);
    if (!why) {
        memcpy(ret, line, (size_t)n);
        ret[n] = 0;
    }
    pst_wipe(line, sizeof line);
    return why ? refused(why, what, path, err, err_size) : (int)n;
}

int secret_token(const char *path, char ret[SECRET_TOKEN_MAX + 1], char *err, size_t err_size)
{
    return read_token(path, OTHERS, ret, err, err_size);
}

int secret_token_to_show(const char *path, char ret[SECRET_TOKEN_MAX + 1], char *err, size_t err_size)
{
    return read_token(path, OTHERS_WRITE, ret, err, err_size);
}
