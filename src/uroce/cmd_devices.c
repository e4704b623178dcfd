/* `uroce devices`. */
#include "commands.h"
#include "roce/wire_gid.h"
#include "uroce/uroce.h"

#include <stdio.h>

static void print_gid(unsigned index, const union uroce_gid *g)
{
    char text[WIRE_GID_TEXT];
    printf("  gid %-3u %s, RoCE v2\n", index, wire_gid_text(g, text));
}

static int show_device(const char *name)
{
    struct uroce_device *dev;
    struct uroce_device_attr a;
    union uroce_gid g;
    char err[256];
    struct uroce_config c = {.name = name, .congestion_control = -1};
    int r = uroce_open(&c, &dev, err, sizeof err);
    if (r) {
        fprintf(stderr, "uroce devices: %s\n", err);
        return 1;
    }
    uroce_query_device(dev, &a);
    printf("%s  RDMA over UDP in user space, MTU %u, up to %u queue pairs\n", a.name, 128u << a.active_mtu, a.max_qp);
    for (unsigned i = 0; uroce_query_gid(dev, i, &g) == 0; i++)
        print_gid(i, &g);
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
    for (int i = 0; i < n; i++)
        failed |= show_device(d[i].name);
    return failed;
}
