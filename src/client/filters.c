/* Filters of this process, on the connection's store. Which, and how they work: docs/filters.md. */
#include "internal.h"

#include "filter/filter.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define FILTERS_ENV "PENSTOCK_FILTERS"

/* On an error *st is the topmost that was pushed. */
static int push_env(const char *value, struct pst_store **st, char *err, size_t err_size)
{
    cleanup_free char *copy = strdup(value);
    char why[300] = "out of memory", *save = NULL;
    int r = copy ? 0 : -ENOMEM;

    for (char *s = copy ? strtok_r(copy, " \t\n", &save) : NULL; s && r == 0; s = strtok_r(NULL, " \t\n", &save))
        r = filter_push(s, *st, st, why, sizeof why);
    if (r < 0)
        snprintf(err, err_size, "environment variable " FILTERS_ENV ": %s", why);
    return r;
}

int cl_filters_push(const char *const *specs, struct pst_store **st, char *err, size_t err_size)
{
    const char *env = specs ? NULL : getenv(FILTERS_ENV);
    int r = 0;

    if (env)
        return push_env(env, st, err, err_size);
    for (; specs && *specs && r == 0; specs++)
        r = filter_push(*specs, *st, st, err, err_size);
    return r;
}
