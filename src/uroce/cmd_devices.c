/* `uroce devices`. */
#include "commands.h"
#include "roce/wire_gid.h"
#include "uroce/uroce.h"

#include "base/util.h"

#include <net/if.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

/* The interface's name and its MTU. */
static void print_interface(unsigned int index)
{
    struct ifreq r = {0};
    cleanup_close int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (!if_indextoname(index, r.ifr_name))
        return;
    printf("  %s", r.ifr_name);
    if (fd >= 0 && ioctl(fd, SIOCGIFMTU, &r) == 0)
        printf(", link MTU %d", r.ifr_mtu);
}

static void print_gid(unsigned index, const union uroce_gid *g, unsigned interface)
{
    char text[WIRE_GID_TEXT];
    printf("  gid %-3u %s, RoCE v2", index, wire_gid_text(g, text));
    print_interface(interface);
    putchar('\n');
}

static int show_device(const struct uroce_device_info *info)
{
    struct uroce_device *dev;
    struct uroce_device_attr a;
    char err[256];
    struct uroce_config c = {.name = info->name, .congestion_control = -1};
    int r = uroce_open(&c, &dev, err, sizeof err);
    if (r) {
        fprintf(stderr, "uroce devices: %s\n", err);
        return 1;
    }
    uroce_query_device(dev, &a);
    uint8_t g[8];
    memcpy(g, &a.node_guid, sizeof g);
    printf("%s  RDMA over UDP in user space, MTU %u, up to %u queue pairs\n"
           "  guid    %02x%02x:%02x%02x:%02x%02x:%02x%02x\n",
           a.name, 128u << a.active_mtu, a.max_qp, g[0], g[1], g[2], g[3], g[4], g[5], g[6], g[7]);
    for (unsigned i = 0; i < info->gids; i++)
        print_gid(i, &info->gid[i].gid, info->gid[i].interface);
    uroce_close(dev);
    return 0;
}

int cmd_devices(int argc, char **argv)
{
    struct uroce_device_info d[UROCE_DEVICES_MAX];
    char err[256];
    (void)argv;
    if (argc)
        return usage_error("devices", "it has no options");
    int n = uroce_list_devices(d, UROCE_DEVICES_MAX, err, sizeof err), failed = 0;
    if (n < 0) {
        fprintf(stderr, "uroce devices: %s\n", err);
        return 1;
    }
    if (*err)
        fprintf(stderr, "uroce devices: %s\n", err);
    for (int i = 0; i < n; i++)
        failed |= show_device(&d[i]);
    return failed;
}
