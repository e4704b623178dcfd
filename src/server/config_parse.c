/* Values as people write them. */
#include "config_rows.h"

#include "base/parse.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

int srv_parse_ms(const char *s, uint64_t *ret)
{
    static const struct {
        const char *unit;
        double ms;
    } units[] = {{"", 1000}, {"ms", 1}, {"s", 1000}, {"m", 60000}, {"h", 3600000}};
    const char *rest;
    double v;

    if (parse_decimal(s, &v, &rest) < 0)
        return -EINVAL;
    for (size_t i = 0; i < ARRAY_SIZE(units); i++)
        if (!strcmp(rest, units[i].unit)) {
            v *= units[i].ms;
            if (v > 1e12)
                return -EINVAL;
            *ret = (uint64_t)v;
            return 0;
        }
    return -EINVAL;
}

const char *config_size_text(uint64_t bytes, char ret[SIZE_TEXT])
{
    static const char *const units[] = {"", "K", "M", "G", "T"};
    unsigned k = 0;

    while (bytes && k + 1 < ARRAY_SIZE(units) && bytes % (UINT64_C(1) << 10 * (k + 1)) == 0)
        k++;
    snprintf(ret, SIZE_TEXT, "%llu%s", (unsigned long long)(bytes >> 10 * k), units[k]);
    return ret;
}

int srv_parse_mode(const char *s, uint32_t *ret)
{
    char *end;
    unsigned long v;

    if (!isdigit((unsigned char)*s))
        return -EINVAL;
    v = strtoul(s, &end, 8);
    if (*end || v > 07777)
        return -EINVAL;
    *ret = (uint32_t)v;
    return 0;
}

int srv_parse_bool(const char *s, bool *ret)
{
    static const char *const yes[] = {"true", "yes", "on", "1"}, *const no[] = {"false", "no", "off", "0"};

    for (size_t i = 0; i < ARRAY_SIZE(yes); i++) {
        if (!strcasecmp(s, yes[i])) {
            *ret = true;
            return 0;
        }
        if (!strcasecmp(s, no[i])) {
            *ret = false;
            return 0;
        }
    }
    return -EINVAL;
}

int srv_parse_addr(const char *s, char ret_host[SRV_HOST_MAX], uint16_t *ret_port)
{
    const char *host = s, *end, *port;
    uint64_t v = 0;
    size_t n;

    if (!strncmp(s, "unix:", 5)) {
        n = strlen(s);
        if (n < 7 || s[5] != '/')
            return -EINVAL;
        if (n - 5 >= 108) /* sun_path */
            return -ENAMETOOLONG;
        memcpy(ret_host, s, n + 1);
        *ret_port = 0;
        return 0;
    }
    if (*s == '[') {
        host = s + 1;
        end = strchr(s, ']');
        port = end && end[1] == ':' ? end + 2 : NULL;
    } else {
        end = strchr(s, ':');
        port = end && !strchr(end + 1, ':') ? end + 1 : NULL;
    }
    if (!port || end == host || parse_uint(port, &v) < 0 || v > UINT16_MAX)
        return -EINVAL;
    n = (size_t)(end - host);
    if (n >= SRV_HOST_MAX)
        return -ENAMETOOLONG;
    memcpy(ret_host, host, n);
    ret_host[n] = 0;
    *ret_port = (uint16_t)v;
    return 0;
}

bool srv_addr_is_local(const char *addr)
{
    char host[SRV_HOST_MAX];
    struct in_addr v4;
    struct in6_addr v6;
    uint16_t port;

    if (srv_parse_addr(addr, host, &port) < 0)
        return false;
    if (!strncmp(host, "unix:", 5) || !strcmp(host, "localhost"))
        return true;
    if (inet_pton(AF_INET, host, &v4) == 1)
        return ntohl(v4.s_addr) >> 24 == 127;
    return inet_pton(AF_INET6, host, &v6) == 1 && IN6_IS_ADDR_LOOPBACK(&v6);
}
