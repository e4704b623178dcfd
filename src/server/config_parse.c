/* Values as people write them. */
#include "server/config.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <string.h>

int srv_parse_uint(const char *s, uint64_t *ret)
{
    char *end;
    unsigned long long v;

    if (!isdigit((unsigned char)*s))
        return -EINVAL;
    errno = 0;
    v = strtoull(s, &end, 10);
    if (errno || *end)
        return -EINVAL;
    *ret = v;
    return 0;
}

/* A decimal number, perhaps with a fraction, then the rest. */
static int parse_number(const char *s, double *ret, const char **ret_rest)
{
    size_t n = strspn(s, "0123456789");
    size_t frac = s[n] == '.' ? strspn(s + n + 1, "0123456789") : 0;
    char digits[40];

    if (n == 0 || (s[n] == '.' && frac == 0))
        return -EINVAL;
    if (frac)
        n += 1 + frac;
    if (n >= sizeof digits)
        return -EINVAL;
    memcpy(digits, s, n);
    digits[n] = 0;
    *ret = strtod(digits, NULL);
    *ret_rest = s + n;
    return 0;
}

int srv_parse_size(const char *s, uint64_t *ret)
{
    static const char units[] = "KMGTP";
    const char *rest, *u;
    double v;
    uint64_t exact;

    if (srv_parse_uint(s, &exact) == 0) { /* doubles would round large ones */
        *ret = exact;
        return 0;
    }
    if (parse_number(s, &v, &rest) < 0)
        return -EINVAL;
    if (*rest && (u = strchr(units, toupper((unsigned char)*rest))) != NULL) {
        for (const char *k = units; k <= u; k++)
            v *= 1024;
        rest++;
        rest += *rest == 'i';
    }
    rest += *rest == 'B';
    if (*rest || v >= 9e18 || v != floor(v))
        return -EINVAL;
    *ret = (uint64_t)v;
    return 0;
}

int srv_parse_ms(const char *s, uint64_t *ret)
{
    static const struct {
        const char *unit;
        double ms;
    } units[] = {{"", 1000}, {"ms", 1}, {"s", 1000}, {"m", 60000}, {"h", 3600000}};
    const char *rest;
    double v;

    if (parse_number(s, &v, &rest) < 0)
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
    if (!port || end == host || srv_parse_uint(port, &v) < 0 || v > UINT16_MAX)
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
