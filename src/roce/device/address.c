/* The device's addresses: the GID table, in the order docs/roce.md gives. */
#define LOG_COMPONENT "uroce"
#include "dev.h"

#include "base/log.h"
#include "roce/wire_gid.h"
#include "roce/wire_limits.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>

#define DAD_WAIT_NS (3 * NSEC_PER_SEC)

/* IPv6 link-local addresses come after the others of their kind; loopback is last. */
enum rank { RANK_V4, RANK_V6, RANK_LINK_LOCAL, RANK_LOOPBACK_V4, RANK_LOOPBACK_V6, RANKS };

static uint32_t link_mtu(const char *ifname)
{
    struct ifreq r = {0};
    cleanup_close int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    snprintf(r.ifr_name, sizeof r.ifr_name, "%s", ifname);
    return fd >= 0 && ioctl(fd, SIOCGIFMTU, &r) == 0 && r.ifr_mtu > 0 ? (uint32_t)r.ifr_mtu : 1500;
}

static enum rank rank_of(const struct ifaddrs *i)
{
    bool v6 = i->ifa_addr->sa_family == AF_INET6;
    if (i->ifa_flags & IFF_LOOPBACK)
        return v6 ? RANK_LOOPBACK_V6 : RANK_LOOPBACK_V4;
    if (!v6)
        return RANK_V4;
    return IN6_IS_ADDR_LINKLOCAL(&((const struct sockaddr_in6 *)(const void *)i->ifa_addr)->sin6_addr) ? RANK_LINK_LOCAL
                                                                                                       : RANK_V6;
}

static void entry_of(const struct ifaddrs *i, struct dev_address *ret)
{
    memset(ret, 0, sizeof *ret);
    port_addr_from(i->ifa_addr, &ret->addr);
    ret->addr.udp_port = PORT_UDP;
    ret->link_mtu = link_mtu(i->ifa_name);
    ret->ifindex = if_nametoindex(i->ifa_name);
    snprintf(ret->ifname, sizeof ret->ifname, "%s", i->ifa_name);
}

static bool candidate(const struct ifaddrs *i)
{
    return i->ifa_addr && (i->ifa_flags & IFF_UP) &&
           (i->ifa_addr->sa_family == AF_INET || i->ifa_addr->sa_family == AF_INET6);
}

static bool can_bind(const struct ifaddrs *i)
{
    struct sockaddr_in6 a;
    memcpy(&a, i->ifa_addr, sizeof a);
    a.sin6_port = 0;
    cleanup_close int fd = socket(AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    return fd < 0 || bind(fd, (struct sockaddr *)&a, sizeof a) == 0 || errno != EADDRNOTAVAIL;
}

/*
 * An IPv6 address that is new is not for use until the kernel knows that nobody else has it (DAD: one to two seconds).
 * It is waited for, else a program that starts early has another GID table than those that come later. *left_ns: for
 * how long altogether. Without a carrier the kernel does not even begin.
 */
static bool usable(const struct ifaddrs *i, uint64_t *left_ns)
{
    const uint64_t step = 10 * NSEC_PER_MSEC;
    if (!candidate(i))
        return false;
    if (i->ifa_addr->sa_family == AF_INET)
        return true;
    while (!can_bind(i)) {
        if (!(i->ifa_flags & IFF_RUNNING) || *left_ns < step)
            return false;
        nanosleep(&(struct timespec){.tv_nsec = (long)step}, NULL);
        *left_ns -= step;
    }
    return true;
}

static int all_addresses(const struct ifaddrs *ifs, struct dev_address *ret, int max)
{
    uint64_t left = DAD_WAIT_NS;
    int n = 0;
    for (int rank = 0; rank < RANKS; rank++)
        for (const struct ifaddrs *i = ifs; i && n < max; i = i->ifa_next)
            if (candidate(i) && rank_of(i) == (enum rank)rank && usable(i, &left))
                entry_of(i, &ret[n++]);
    return n;
}

/* "192.0.2.1", "2001:db8::1", "fe80::1%eth0": one that an interface of this machine has. */
static int one_address(const struct ifaddrs *ifs, char *text, const char *origin, struct dev_address *ret, char *err,
                       size_t err_size)
{
    char *zone = strchr(text, '%');
    if (zone)
        *zone++ = '\0';
    uint8_t want[16];
    int family = strchr(text, ':') ? AF_INET6 : AF_INET;
    if (inet_pton(family, text, want) != 1) {
        snprintf(err, err_size, "%s: '%s' is not an IPv4 or IPv6 address", origin, text);
        return -EINVAL;
    }
    for (const struct ifaddrs *i = ifs; i; i = i->ifa_next) {
        uint64_t left = DAD_WAIT_NS;
        if (!candidate(i) || i->ifa_addr->sa_family != family || (zone && strcmp(zone, i->ifa_name)))
            continue;
        entry_of(i, ret);
        if (memcmp(ret->addr.gid.raw + (family == AF_INET ? 12 : 0), want, family == AF_INET ? 4 : 16))
            continue;
        if (usable(i, &left))
            return 0;
        snprintf(err, err_size, "%s: %s of %s is not ready (tentative): the link has no carrier, or another has it",
                 origin, text, i->ifa_name);
        return -EADDRNOTAVAIL;
    }
    snprintf(err, err_size, "%s: no interface that is up has %s%s%s: `ip address` shows those there are", origin, text,
             zone ? "%" : "", zone ? zone : "");
    return -EADDRNOTAVAIL;
}

static int listed_addresses(const struct ifaddrs *ifs, const char *list, const char *origin, struct dev_address *ret,
                            int max, char *err, size_t err_size)
{
    cleanup_free char *copy = strdup(list);
    if (!copy)
        return -ENOMEM;
    int n = 0;
    char *save = NULL;
    for (char *w = strtok_r(copy, ", ", &save); w; w = strtok_r(NULL, ", ", &save)) {
        if (n == max) {
            snprintf(err, err_size, "%s: more than %d addresses", origin, max);
            return -E2BIG;
        }
        int r = one_address(ifs, w, origin, &ret[n], err, err_size);
        if (r < 0)
            return r;
        n++;
    }
    return n;
}

int dev_addresses(const char *list, const char *origin, struct dev_address *ret, int max, char *err, size_t err_size)
{
    struct ifaddrs *ifs;
    if (getifaddrs(&ifs)) {
        int e = errno;
        snprintf(err, err_size, "the machine's addresses cannot be read: %s", strerror(e));
        return -e;
    }
    int n = list ? listed_addresses(ifs, list, origin, ret, max, err, err_size) : all_addresses(ifs, ret, max);
    freeifaddrs(ifs);
    if (n == 0 && list) {
        snprintf(err, err_size, "%s: no address is given", origin);
        return -EINVAL;
    }
    if (n == 0) {
        snprintf(err, err_size, "no interface is up with an IPv4 or IPv6 address: `ip link set lo up` gives one");
        return -EADDRNOTAVAIL;
    }
    return n;
}

int dev_address_index(const struct uroce_device *dev, const union uroce_gid *gid)
{
    for (int i = 0; i < dev->nports; i++)
        if (!memcmp(&dev->ports[i].at.addr.gid, gid, sizeof *gid))
            return i;
    return -EADDRNOTAVAIL;
}

uint64_t dev_guid(const struct dev_address *first, unsigned int index)
{
    uint8_t guid[8] = {0x02, 'u', (uint8_t)('r' + index), 0xff};
    uint64_t ret;
    memcpy(guid + 4, first->addr.gid.raw + 12, 4);
    memcpy(&ret, guid, sizeof ret);
    return ret;
}

int dev_mtu_check(const struct uroce_device *dev, unsigned int port, enum uroce_mtu mtu, uint32_t qpn)
{
    const struct dev_address *a = &dev->ports[port].at;
    int most = wire_mtu_for_link(a->link_mtu, !wire_gid_is_v4(&a->addr.gid));
    if ((int)mtu <= most)
        return 0;
    log_debug("modify of queue pair 0x%06x refused: path MTU %u is more than %u, the most that %s (MTU %u) carries",
              qpn, 128u << mtu, most > 0 ? 128u << most : 0, a->ifname, a->link_mtu);
    return -EINVAL;
}

int dev_path(struct uroce_device *dev, const struct uroce_ah_attr *attr, uint32_t flow_hash, struct qp_path *ret)
{
    if (attr->sgid_index >= dev->nports || attr->flow_label > 0xfffff) {
        log_debug("address refused: GID index %u of a table of %d, flow label 0x%x", attr->sgid_index, dev->nports,
                  attr->flow_label);
        return -EINVAL;
    }
    struct dev_port *p = &dev->ports[attr->sgid_index];
    if (wire_gid_is_v4(&attr->dgid) != wire_gid_is_v4(&p->at.addr.gid)) {
        char ours[WIRE_GID_TEXT], theirs[WIRE_GID_TEXT];
        log_debug("address refused: GID index %u is %s, the peer's is %s: one is IPv4, the other IPv6",
                  attr->sgid_index, wire_gid_text(&p->at.addr.gid, ours), wire_gid_text(&attr->dgid, theirs));
        return -EINVAL;
    }
    uint16_t wanted = (uint16_t)(WIRE_UDP_SPORT_MIN | (flow_hash & 0x3fff));
    *ret = (struct qp_path){
        .local = p->at.addr.gid,
        .remote = attr->dgid,
        .flow_label = attr->flow_label,
        .udp_sport = port_sport(p->port, wanted),
        .traffic_class = attr->traffic_class & 0xfc,
        .hop_limit = attr->hop_limit ? attr->hop_limit : 64,
        .port_id = attr->sgid_index,
    };
    return 0;
}
