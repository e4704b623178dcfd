/*
 * What the kernel shows of RDMA devices, as its soft-RoCE driver has it: names, formats and links. Values are those
 * that libibverbs.so.1 tells of the same devices (src/roce/verbs/query.c).
 *
 * A read of the type or interface of an empty GID slot fails in sysfs; a file cannot do that: it is empty here.
 */
#include "view_files.h"

#include <errno.h>
#include <net/if.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DEVICE "devices/virtual/infiniband/%s"

static void put(struct view_files *f, bool link, char *path, char *text)
{
    if (f->n == f->room) {
        size_t room = f->room ? 2 * f->room : 256;
        struct view_file *at = realloc(f->at, room * sizeof *at);
        if (!at)
            f->err = -ENOMEM;
        else {
            f->at = at;
            f->room = room;
        }
    }
    if (!path || !text)
        f->err = -ENOMEM;
    if (f->err) {
        free(path);
        free(text);
        return;
    }
    f->at[f->n++] = (struct view_file){.path = path, .text = text, .link = link};
}

__attribute__((format(printf, 1, 2))) static char *text_of(const char *fmt, ...)
{
    char *ret;
    va_list ap;
    va_start(ap, fmt);
    int n = vasprintf(&ret, fmt, ap);
    va_end(ap);
    return n < 0 ? NULL : ret;
}

/* Below a device's directory, of `dev`. */
#define FILE_OF(f, dev, file, ...) put(f, false, text_of(DEVICE "/%s", (dev)->name, file), text_of(__VA_ARGS__))
#define LINK_OF(f, dev, file, ...) put(f, true, text_of(DEVICE "/%s", (dev)->name, file), text_of(__VA_ARGS__))

static char *gid_text(const union uroce_gid *g)
{
    const uint8_t *r = g->raw;
    return text_of("%02x%02x:%02x%02x:%02x%02x:%02x%02x:%02x%02x:%02x%02x:%02x%02x:%02x%02x\n", r[0], r[1], r[2], r[3],
                   r[4], r[5], r[6], r[7], r[8], r[9], r[10], r[11], r[12], r[13], r[14], r[15]);
}

static void gid_table(struct view_files *f, const struct uroce_device_info *d)
{
    static const union uroce_gid empty;
    char name[64], ifname[IF_NAMESIZE];
    for (unsigned i = 0; i < UROCE_GID_TABLE; i++) {
        bool used = i < d->gids && if_indextoname(d->gid[i].interface, ifname);
        put(f, false, text_of(DEVICE "/ports/1/gids/%u", d->name, i), gid_text(used ? &d->gid[i].gid : &empty));
        snprintf(name, sizeof name, "ports/1/gid_attrs/types/%u", i);
        FILE_OF(f, d, name, "%s", used ? "RoCE v2\n" : "");
        snprintf(name, sizeof name, "ports/1/gid_attrs/ndevs/%u", i);
        FILE_OF(f, d, name, "%s%s", used ? ifname : "", used ? "\n" : "");
    }
}

/* Near to every CPU: "3,ffffffff" and "0-33". */
static void all_cpus(struct view_files *f, const struct uroce_device_info *d)
{
    long n = sysconf(_SC_NPROCESSORS_CONF);
    char mask[1024] = "";
    n = n < 1 ? 1 : n > 2048 ? 2048 : n;
    for (long group = (n - 1) / 32, at = 0; group >= 0; group--) {
        long cpus = group == (n - 1) / 32 ? (n - 1) % 32 + 1 : 32;
        at += snprintf(mask + at, sizeof mask - (size_t)at, "%lx%s", (1l << cpus) - 1, group ? "," : "");
    }
    FILE_OF(f, d, "device/local_cpus", "%s\n", mask);
    if (n > 1)
        FILE_OF(f, d, "device/local_cpulist", "0-%ld\n", n - 1);
    else
        FILE_OF(f, d, "device/local_cpulist", "0\n");
}

/* What programs ask of the bus: where it is, and which interfaces it has. */
static void bus(struct view_files *f, const struct uroce_device_info *d, int index)
{
    char ifname[IF_NAMESIZE], name[64];
    FILE_OF(f, d, "device/numa_node", "-1\n");
    FILE_OF(f, d, "device/vendor", "0xffff\n");
    FILE_OF(f, d, "device/device", "0x0001\n");
    all_cpus(f, d);
    snprintf(name, sizeof name, "device/infiniband/%s", d->name);
    LINK_OF(f, d, name, "../..");
    snprintf(name, sizeof name, "device/infiniband_verbs/uverbs%d", index);
    LINK_OF(f, d, name, "../../../../../../class/infiniband_verbs/uverbs%d", index);
    for (unsigned i = 0; i < d->gids; i++) {
        bool seen = !if_indextoname(d->gid[i].interface, ifname);
        for (unsigned k = 0; k < i; k++)
            seen |= d->gid[k].interface == d->gid[i].interface;
        /* An adapter has no loopback interface, and who takes the first one that is listed wants to reach others. */
        seen |= i > 0 && strcmp(ifname, "lo") == 0;
        snprintf(name, sizeof name, "device/net/%s", ifname);
        if (!seen)
            LINK_OF(f, d, name, "/sys/class/net/%s", ifname);
    }
}

static void device(struct view_files *f, const struct uroce_device_info *d, int index)
{
    uint8_t g[8];
    char guid[32];
    memcpy(g, &d->node_guid, sizeof g);
    snprintf(guid, sizeof guid, "%02x%02x:%02x%02x:%02x%02x:%02x%02x", g[0], g[1], g[2], g[3], g[4], g[5], g[6], g[7]);
    FILE_OF(f, d, "node_type", "1: CA\n");
    FILE_OF(f, d, "node_guid", "%s\n", guid);
    FILE_OF(f, d, "sys_image_guid", "%s\n", guid);
    FILE_OF(f, d, "node_desc", "%s\n", d->name);
    FILE_OF(f, d, "fw_ver", "%s\n", PENSTOCK_VERSION);
    FILE_OF(f, d, "hca_type", "uroce\n");
    FILE_OF(f, d, "board_id", "uroce\n");
    FILE_OF(f, d, "hw_rev", "0x1\n");
    FILE_OF(f, d, "ports/1/state", "4: ACTIVE\n");
    FILE_OF(f, d, "ports/1/phys_state", "5: LinkUp\n");
    FILE_OF(f, d, "ports/1/rate", "25 Gb/sec (1X EDR)\n");
    FILE_OF(f, d, "ports/1/link_layer", "Ethernet\n");
    FILE_OF(f, d, "ports/1/lid", "0x0\n");
    FILE_OF(f, d, "ports/1/lid_mask_count", "0\n");
    FILE_OF(f, d, "ports/1/sm_lid", "0x0\n");
    FILE_OF(f, d, "ports/1/sm_sl", "0\n");
    FILE_OF(f, d, "ports/1/cap_mask", "0x04010000\n");
    FILE_OF(f, d, "ports/1/pkeys/0", "0xffff\n");
    gid_table(f, d);
    bus(f, d, index);
    put(f, true, text_of("class/infiniband/%s", d->name), text_of("../../" DEVICE, d->name));
    /* Of the character devices' major number for dynamic use; nobody opens it: see dev/infiniband. */
    put(f, false, text_of("class/infiniband_verbs/uverbs%d/dev", index), text_of("231:%d\n", 192 + index));
    put(f, false, text_of("class/infiniband_verbs/uverbs%d/ibdev", index), text_of("%s\n", d->name));
    put(f, false, text_of("class/infiniband_verbs/uverbs%d/abi_version", index), text_of("1\n"));
    put(f, true, text_of("class/infiniband_verbs/uverbs%d/device", index),
        text_of("../../../" DEVICE "/device", d->name));
    /* Programs look whether it is a character device that they may read and write. */
    put(f, true, text_of("dev/infiniband/uverbs%d", index), text_of("/dev/null"));
}

void view_files_of(const struct uroce_device_info *devices, int n, struct view_files *ret)
{
    *ret = (struct view_files){0};
    put(ret, false, text_of("class/infiniband_verbs/abi_version"), text_of("6\n"));
    for (int i = 0; i < n; i++)
        device(ret, &devices[i], i);
}

void view_files_done(struct view_files *f)
{
    for (size_t i = 0; i < f->n; i++) {
        free(f->at[i].path);
        free(f->at[i].text);
    }
    free(f->at);
    *f = (struct view_files){0};
}

/* FNV-1a: a name, no protection; who could make another view of the same sum is this user. */
static uint64_t add(uint64_t sum, const char *s)
{
    do
        sum = (sum ^ (uint8_t)*s) * 0x100000001b3u;
    while (*s++);
    return sum;
}

uint64_t view_files_sum(const struct view_files *f)
{
    uint64_t sum = 0xcbf29ce484222325u;
    for (size_t i = 0; i < f->n; i++)
        sum = add(add(add(sum, f->at[i].path), f->at[i].text), f->at[i].link ? "l" : "f");
    return sum;
}
