#include "base/open.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#define WRITER_WAIT_MS 5000

static int wait_for_writer(int fd)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    int r;

    do
        r = poll(&p, 1, WRITER_WAIT_MS);
    while (r < 0 && errno == EINTR);
    return r < 0 ? -errno : r == 0 ? -ENODATA : 0;
}

int open_setting(const char *path)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK), r;
    struct stat st;

    if (fd < 0)
        return -errno;
    r = fstat(fd, &st) < 0 ? -errno : S_ISFIFO(st.st_mode) ? wait_for_writer(fd) : 0;
    if (r == 0 && fcntl(fd, F_SETFL, 0) < 0)
        r = -errno;
    if (r == 0)
        return fd;
    close(fd);
    return r;
}
