/* Exported memory: proofs, and the memory itself. */
#include "fabric/export.h"

#include "base/crypto.h"
#include "base/util.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

static_assert(sizeof(struct export_hello) == 56 && sizeof(struct export_answer) == 72 &&
                  sizeof(struct export_give) == 40 && sizeof(struct export_taken) == 16,
              "layout");

int export_mac(const uint8_t key[EXPORT_KEY], bool from_daemon, const struct export_talk *t, uint64_t value,
               uint8_t ret[EXPORT_MAC])
{
    static const char daemon[] = "penstock export daemon 1", client[] = "penstock export client 1";
    const le64 v = put_le64(value);
    const struct pst_bytes parts[] = {
        {from_daemon ? daemon : client, sizeof daemon}, {t, sizeof *t}, {&v, sizeof v}};

    static_assert(sizeof daemon == sizeof client, "labels");
    return pst_hmac(key, EXPORT_KEY, parts, ARRAY_SIZE(parts), ret);
}

int export_memory_new(size_t len, void **ret_base, int *ret_fd)
{
    int fd = memfd_create("penstock", MFD_CLOEXEC | MFD_ALLOW_SEALING), r = 0;
    void *p = MAP_FAILED;

    if (fd < 0)
        return -errno;
    if (ftruncate(fd, (off_t)len) < 0 || fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) < 0)
        r = -errno;
    if (r == 0) {
        p = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        r = p == MAP_FAILED ? -errno : 0;
    }
    if (r < 0) {
        close(fd);
        return r;
    }
    *ret_base = p;
    *ret_fd = fd;
    return 0;
}

int export_memory_or_private(bool shared, size_t len, void **ret_base, int *ret_fd)
{
    void *p;

    if (shared && export_memory_new(len, ret_base, ret_fd) == 0)
        return 0;
    p = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return -ENOMEM;
    *ret_base = p;
    *ret_fd = -1;
    return 0;
}

/* vm.overcommit_memory 2: each page is accounted when it is touched, and may be refused then. */
static bool accounted_strictly(void)
{
    FILE *f = fopen("/proc/sys/vm/overcommit_memory", "re");
    int c = f ? fgetc(f) : '0';

    if (f)
        fclose(f);
    return c == '2';
}

int export_memory_check(int fd, uint64_t len)
{
    /* The first question is answered by the kernel's memory files alone: no foreign file system is asked anything. */
    int seals = fcntl(fd, F_GET_SEALS), mode = fcntl(fd, F_GETFL);
    struct statfs fs;
    struct stat st;

    if (seals < 0 || mode < 0)
        return -EINVAL;
    if ((seals & (F_SEAL_SHRINK | F_SEAL_GROW)) != (F_SEAL_SHRINK | F_SEAL_GROW) || seals & F_SEAL_WRITE ||
        (mode & O_ACCMODE) != O_RDWR)
        return -EPERM;
    if (fstatfs(fd, &fs) < 0 || fs.f_type != TMPFS_MAGIC) /* huge pages may run out at the first touch */
        return -EINVAL;
    if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode) || st.st_size < 0 || (uint64_t)st.st_size != len)
        return -EINVAL;
    return accounted_strictly() ? -EOPNOTSUPP : 0;
}
