/* The files of sysfs that programs read by libibverbs' functions: answered from the device, no file is opened. */
#include "verbs_priv.h"

#include <fcntl.h>
#include <net/if.h>
#include <stdio.h>
#include <string.h>

/* The private node's, for providers, which have no device here. */
int ibv_read_ibdev_sysfs_file(char *buf, size_t size, void *sysfs_dev, const char *fmt, ...);
const char *ibv_get_sysfs_path(void);
int ibv_read_sysfs_file(const char *dir, const char *file, char *buf, size_t size);

const char *ibv_get_sysfs_path(void)
{
    const char *path = getenv("SYSFS_PATH");
    return path && *path ? path : "/sys";
}

int ibv_read_ibdev_sysfs_file(char *buf, size_t size, void *sysfs_dev, const char *fmt, ...)
{
    (void)buf, (void)size, (void)sysfs_dev, (void)fmt;
    errno = EINVAL;
    return -1;
}

/* A GUID as sysfs writes it: "0275:72ff:c000:0201". */
static void guid_text(uint64_t guid, char *ret, size_t size)
{
    uint8_t g[8];
    memcpy(g, &guid, sizeof g);
    snprintf(ret, size, "%02x%02x:%02x%02x:%02x%02x:%02x%02x", g[0], g[1], g[2], g[3], g[4], g[5], g[6], g[7]);
}

/* A file below /sys/class/infiniband/NAME that is the same whether the device is open or not. */
static bool device_file(const struct vb_device *d, const char *path, char *ret, size_t size)
{
    static const struct {
        const char *path, *text;
    } files[] = {
        {"node_type", "1: CA"},
        {"fw_ver", PENSTOCK_VERSION},
        {"hw_rev", "0x1"},
        {"hca_type", "uroce"},
        {"board_id", "uroce"},
        {"node_desc", "uroce"},
        {"ports/1/link_layer", "Ethernet"},
        {"ports/1/state", "4: ACTIVE"},
        {"ports/1/phys_state", "5: LinkUp"},
        {"ports/1/rate", "25 Gb/sec (1X EDR)"},
        {"ports/1/pkeys/0", "0xffff"},
    };
    for (size_t i = 0; i < ARRAY_SIZE(files); i++)
        if (strcmp(path, files[i].path) == 0) {
            snprintf(ret, size, "%s", files[i].text);
            return true;
        }
    if (strcmp(path, "node_guid") && strcmp(path, "sys_image_guid"))
        return false;
    guid_text(d->guid, ret, size);
    return true;
}

/* Of the directory `dir` of one of our devices, with what is left of the path; NULL: not ours. */
static const struct vb_device *device_of(const char *dir, const char *file, char *rest, size_t size)
{
    int n;
    struct ibv_device **list = ibv_get_device_list(&n);
    const struct vb_device *found = NULL;
    for (int i = 0; list && i < n && !found; i++) {
        size_t len = strlen(list[i]->ibdev_path);
        if (strncmp(dir, list[i]->ibdev_path, len) || (dir[len] && dir[len] != '/'))
            continue;
        found = container_of(list[i], struct vb_device, ibv);
        snprintf(rest, size, "%s%s%s", dir[len] ? dir + len + 1 : "", dir[len] ? "/" : "", file);
    }
    ibv_free_device_list(list);
    return found;
}

/* Of any other file: its content without the newline at the end. */
static int read_file(const char *dir, const char *file, char *buf, size_t size)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", dir, file);
    cleanup_close int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, buf, size);
    if (n <= 0)
        return (int)n;
    if (buf[n - 1] == '\n')
        buf[--n] = '\0';
    else if ((size_t)n < size)
        buf[n] = '\0';
    return (int)n;
}

/* Length of the text, or -1. */
int ibv_read_sysfs_file(const char *dir, const char *file, char *buf, size_t size)
{
    char rest[256], text[128];
    const struct vb_device *d = size ? device_of(dir, file, rest, sizeof rest) : NULL;
    if (!d)
        return read_file(dir, file, buf, size);
    if (!device_file(d, rest, text, sizeof text)) {
        errno = ENOENT;
        return -1;
    }
    snprintf(buf, size, "%s", text);
    return (int)strlen(buf);
}
