/*
 * URLs as the command line reads them. What it takes is whole: the parts are there and valid, and the library, which
 * splits what the command hands on, finds the same pool and container in it.
 */
#include "fuzz.h"

#include "cli.h"
#include "internal.h"

#include "base/rng.h"
#include "store/perm.h"

#include <string.h>

const char *cli_name = "fuzz"; /* main.c's */

static void check_library(const struct cli_url *u)
{
    cleanup_free char *base = NULL, *pool = NULL, *cont = NULL;

    CHECK(cl_url_split(u->base, &base, &pool, &cont) == 0);
    CHECK(!strcmp(base, u->server));
    CHECK(pool ? !strcmp(pool, u->pool) && !strcmp(cont, u->container) : !strcmp(u->base, u->server));
}

static void check_url(const char *s, int parts)
{
    struct cli_url u, again;
    char addr[sizeof u.server + 8];
    size_t n;

    if (cli_url(s, parts, &u))
        return;
    n = strlen(u.path);
    CHECK(cli_is_url(s) && !strncmp(s, u.server, strlen(u.server)));
    CHECK(u.path[0] == '/' && (n == 1 || u.path[n - 1] != '/'));
    CHECK((parts < 1 || u.pool[0]) && (parts < 2 || u.container[0]));
    CHECK((!u.pool[0] || !pst_label_check(u.pool)) && (!u.container[0] || !pst_label_check(u.container)));
    CHECK(!strncmp(u.server, "local:", 6) || !cli_url_addr(&u, addr, sizeof addr));
    if (parts < 2)
        return;
    check_library(&u);
    CHECK(!cli_url(u.base, parts, &again) && !strcmp(again.base, u.base) && !strcmp(again.path, "/"));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    cleanup_free char *s = strndup((const char *)data, size);
    static FILE *null;

    if (!null)
        stderr = null = fopen("/dev/null", "w"); /* a line for each that is refused; sanitizers write elsewhere */
    CHECK(s && null);
    for (int parts = 0; parts <= 2; parts++)
        check_url(s, parts);
    return 0;
}

size_t fuzz_sample(uint64_t n, uint8_t *buf, size_t cap)
{
    static const char *const heads[] = {"penstock://host/",       "penstock://127.0.0.1:7440/", "penstock://[::1]:5/",
                                        "penstock+unix:///run/p?", "local:/srv/store?",           "local:dir",
                                        "penstock://h.example",   "local:/srv/?"};
    static const char *const tails[] = {
        "pool/container", "pool/container/a/b", "p.1-x_Y/c//a/", "pool", "", "/", "p/c/"};
    struct rng r;
    int len;

    rng_seed(&r, n);
    len = snprintf((char *)buf, cap, "%s%s", heads[rng_below(&r, ARRAY_SIZE(heads))],
                   tails[rng_below(&r, ARRAY_SIZE(tails))]);
    return (size_t)len;
}
