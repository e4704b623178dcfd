/* `uroce doctor`: what would not work here, or not as well as it could, and how to mend it. */
#include "commands.h"
#include "program.h"
#include "roce/wire_gid.h"
#include "roce/wire_limits.h"
#include "selftest.h"
#include "view.h"

#include "base/util.h"

#include <errno.h>
#include <limits.h>
#include <net/if.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#define RMEM_WANTED (4u << 20)

enum verdict { GOOD, NOTE, BAD };
static bool any_bad;

__attribute__((format(printf, 2, 3))) static void say(enum verdict v, const char *fmt, ...)
{
    static const char *const words[] = {"ok  ", "note", "BAD "};
    va_list ap;
    printf("%s  ", words[v]);
    va_start(ap, fmt);
    vprintf(fmt, ap);
    va_end(ap);
    putchar('\n');
    any_bad |= v == BAD;
}

/* A number in a file of /proc; -1: there is none. */
static long number_in(const char *path)
{
    long n = -1;
    FILE *f = fopen(path, "re");
    if (!f)
        return -1;
    if (fscanf(f, "%ld", &n) != 1)
        n = -1;
    fclose(f);
    return n;
}

/* ---- the program, the libraries ---- */

static void look_at_program(const char *name)
{
    char path[PATH_MAX], err[PATH_MAX + 256];
    int r = program_find(name, path, sizeof path);
    if (r)
        say(BAD, "%s: %s", name, r == -ENOENT ? "there is no such program" : strerror(-r));
    else if (program_check(path, err, sizeof err))
        say(BAD, "%s", err);
    else
        say(GOOD, "%s takes libraries from the environment", path);
}

static void look_at_libraries(void)
{
    struct program_libraries lib;
    char err[512];
    if (program_libraries(&lib, err, sizeof err)) {
        say(BAD, "%s", err);
        return;
    }
    say(GOOD, "drop-in libraries: %s", lib.dir);
    if (!lib.rdmacm)
        say(BAD, "%s has no librdmacm.so.1: programs that connect by rdma_cm find no device", lib.dir);
    if (getenv("UROCE_SYSFS"))
        say(NOTE, "UROCE_SYSFS is set: this runs under `uroce run` already");
}

/* ---- the machine ---- */

/* A user, not us, whose sockets have UDP port 4791: "  12: 0100007F:12B7 ... uid". */
static bool port_owner(const char *path, unsigned *ret_uid)
{
    char line[512];
    bool found = false;
    FILE *f = fopen(path, "re");
    while (f && !found && fgets(line, sizeof line, f)) {
        unsigned port;
        found =
            sscanf(line, " %*u: %*[0-9A-Fa-f]:%x %*[0-9A-Fa-f]:%*x %*x %*x:%*x %*x:%*x %*x %u", &port, ret_uid) == 2 &&
            port == WIRE_UDP_PORT && *ret_uid != geteuid();
    }
    if (f)
        fclose(f);
    return found;
}

static void name_port_owner(void)
{
    unsigned uid;
    if (port_owner("/proc/self/net/udp", &uid) || port_owner("/proc/self/net/udp6", &uid))
        say(NOTE, "UDP port %u is in use by uid %u%s", WIRE_UDP_PORT, uid,
            uid ? ""
                : ": uroce of root's, or the kernel's soft-RoCE (`rdma link` shows it, `rdma link delete` ends it)");
}

static void look_at_limits(void)
{
    long rmem = number_in("/proc/sys/net/core/rmem_max"), yama = number_in("/proc/sys/kernel/yama/ptrace_scope");
    if (rmem >= 0 && rmem < (long)RMEM_WANTED && geteuid() != 0)
        say(NOTE,
            "receive buffers are at most %ld KiB, which bounds what is on its way: "
            "`sysctl -w net.core.rmem_max=16777216` as root makes transfers faster",
            rmem / 1024);
    if (yama > 0)
        say(NOTE,
            "ptrace_scope is %ld: processes of this machine cannot read one another's memory and copy twice; "
            "`sysctl -w kernel.yama.ptrace_scope=0` as root spares a copy",
            yama);
    if (access("/proc/sys/net/ipv6", F_OK) || number_in("/proc/sys/net/ipv6/conf/all/disable_ipv6") == 1)
        say(NOTE, "IPv6 is off: no device has an IPv6 address");
}

static void look_at_interface(unsigned int index)
{
    struct ifreq r = {0};
    cleanup_close int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (!if_indextoname(index, r.ifr_name) || fd < 0 || ioctl(fd, SIOCGIFMTU, &r))
        return;
    int mtu = wire_mtu_for_link((uint32_t)r.ifr_mtu, true), link = r.ifr_mtu;
    if (mtu < 0)
        say(BAD, "%s: its MTU of %d is too small for any packet: `ip link set %s mtu 1500`", r.ifr_name, link,
            r.ifr_name);
    else if (mtu < WIRE_MTU_4096)
        say(NOTE,
            "%s: MTU %d allows packets of %u bytes; with `ip link set %s mtu 4300` or more, here and all along the "
            "path, they have 4096, and transfers are faster",
            r.ifr_name, link, 128u << mtu, r.ifr_name);
    if (ioctl(fd, SIOCGIFFLAGS, &r) == 0 && !(r.ifr_flags & IFF_RUNNING))
        say(NOTE, "%s has no carrier", r.ifr_name);
}

static void look_at_addresses(struct uroce_device *dev, const struct uroce_device_info *d)
{
    char text[WIRE_GID_TEXT];
    for (unsigned i = 0; i < d->gids; i++) {
        union uroce_gid g;
        int r = uroce_query_gid(dev, i, &g);
        r = r ? r : selftest_address(dev, i);
        wire_gid_text(&d->gid[i].gid, text);
        if (r == 0)
            say(GOOD, "%s, GID %u: a datagram comes back", text, i);
        else
            say(BAD, "%s, GID %u: a datagram to itself is lost (%s): does a packet filter drop UDP port %u?", text, i,
                strerror(-r), WIRE_UDP_PORT);
        bool seen = false;
        for (unsigned k = 0; k < i; k++)
            seen |= d->gid[k].interface == d->gid[i].interface;
        if (!seen)
            look_at_interface(d->gid[i].interface);
    }
    if (d->gids == UROCE_GIDS_MAX)
        say(NOTE, "%s has %u addresses, which is the most: choose those of interest with UROCE_ADDRESS", d->name,
            d->gids);
}

static void look_at_device(const struct uroce_device_info *d)
{
    struct uroce_device *dev;
    char err[512];
    struct uroce_config c = {.name = d->name, .congestion_control = -1};
    int r = uroce_open(&c, &dev, err, sizeof err);
    if (r) {
        say(BAD, "%s: %s", d->name, err);
        if (r == -EADDRINUSE)
            name_port_owner();
        return;
    }
    say(GOOD, "%s opens", d->name);
    look_at_addresses(dev, d);
    uroce_close(dev);
}

static void look_at_devices(void)
{
    struct uroce_device_info d[UROCE_DEVICES_MAX];
    char err[512], dir[PATH_MAX];
    int n = uroce_list_devices(d, UROCE_DEVICES_MAX, err, sizeof err);
    if (n < 0) {
        say(BAD, "%s", err);
        return;
    }
    if (*err)
        say(BAD, "%s", err);
    for (int i = 0; i < n; i++)
        look_at_device(&d[i]);
    if (view_make(d, n, dir, sizeof dir, err, sizeof err))
        say(BAD, "the files that programs look for: %s", err);
    else
        say(GOOD, "the files that programs look for: %s", dir);
}

int cmd_doctor(int argc, char **argv)
{
    if (argc > 1 || (argc == 1 && argv[0][0] == '-'))
        return usage_error("doctor", "it takes a program, or nothing");
    program_is_holder(); /* as `uroce run` does */
    if (argc == 1)
        look_at_program(argv[0]);
    look_at_libraries();
    look_at_devices();
    look_at_limits();
    printf(any_bad ? "Mend what is BAD first.\n" : "Programs that use RDMA run here: uroce run -- PROGRAM\n");
    return any_bad;
}
