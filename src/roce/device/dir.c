#include "roce/device_dir.h"

#include "base/util.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>

#define NAMES 10

int private_dir_open(const char *dir)
{
    struct stat st;
    int fd = open(dir, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return errno == ENOTDIR ? -EPERM : -errno;
    if (fstat(fd, &st) || st.st_uid != geteuid() || (st.st_mode & 077)) {
        close(fd);
        return -EPERM;
    }
    return fd;
}

int private_dir_make(const char *dir)
{
    return mkdir(dir, 0700) && errno != EEXIST ? -errno : private_dir_open(dir);
}

int private_dir_in(const char *parent, char *ret_dir, size_t size)
{
    int fd = -EPERM;
    for (int i = 0; i < NAMES && fd == -EPERM; i++) {
        char suffix[16] = "";
        if (i)
            snprintf(suffix, sizeof suffix, ".%d", i);
        int n = snprintf(ret_dir, size, "%s/uroce-%u%s", parent, (unsigned)geteuid(), suffix);
        fd = n < 0 || (size_t)n >= size ? -ENAMETOOLONG : private_dir_make(ret_dir);
    }
    return fd;
}
