#include "store/store.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define BACKENDS_MAX 8

static const struct pst_backend *backends[BACKENDS_MAX];
static size_t nbackends;

void pst_backend_register(const struct pst_backend *b)
{
    if (nbackends == BACKENDS_MAX)
        abort();
    backends[nbackends++] = b;
}

int pst_backend_open(const char *url, const struct pst_option *opts, size_t nopts, struct pst_store **ret, char *err,
                     size_t err_size)
{
    const char *colon = strchr(url, ':');
    size_t n;

    for (size_t i = 0; colon && i < nbackends; i++)
        if (strlen(backends[i]->scheme) == (size_t)(colon - url) &&
            !strncmp(url, backends[i]->scheme, (size_t)(colon - url)))
            return backends[i]->open(colon + 1, opts, nopts, ret, err, err_size);

    n = (size_t)snprintf(err, err_size, "no store engine for the URL \"%.200s\"; known schemes:", url);
    for (size_t i = 0; i < nbackends && n < err_size; i++)
        n += (size_t)snprintf(err + n, err_size - n, " %s:", backends[i]->scheme);
    return -EPROTONOSUPPORT;
}
