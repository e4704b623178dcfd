#include "base/parse.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

int parse_uint(const char *s, uint64_t *ret)
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

int parse_decimal(const char *s, double *ret, const char **ret_rest)
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

int parse_size(const char *s, uint64_t *ret)
{
    static const char units[] = "KMGTP";
    const char *rest, *u;
    double v;
    uint64_t exact;

    if (parse_uint(s, &exact) == 0) { /* doubles would round large ones */
        *ret = exact;
        return 0;
    }
    if (parse_decimal(s, &v, &rest) < 0)
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
