/* Opening and closing the namespace of a store. */
#include "ns.h"

#include <errno.h>

static void ns_free(struct ns *ns)
{
    opens_close(ns);
    cache_close(ns);
    usage_unload(ns);
    pthread_mutex_destroy(&ns->commit_lock);
    pthread_mutex_destroy(&ns->table_lock);
    pthread_mutex_destroy(&ns->open_lock);
    pthread_mutex_destroy(&ns->gc_work);
    pthread_mutex_destroy(&ns->gc_lock);
    pthread_cond_destroy(&ns->gc_cond);
    free(ns);
}

static struct ns *ns_new(struct engine *e)
{
    struct ns *ns = calloc(1, sizeof *ns);
    pthread_condattr_t attr;

    if (!ns)
        return NULL;
    ns->e = e;
    pthread_mutex_init(&ns->commit_lock, NULL);
    pthread_mutex_init(&ns->table_lock, NULL);
    pthread_mutex_init(&ns->open_lock, NULL);
    pthread_mutex_init(&ns->gc_work, NULL);
    pthread_mutex_init(&ns->gc_lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&ns->gc_cond, &attr);
    pthread_condattr_destroy(&attr);
    list_init(&ns->pools);
    for (size_t b = 0; b < NS_CONT_BUCKETS; b++)
        list_init(&ns->conts[b]);
    opens_open(ns);
    return ns;
}

int ns_open(struct engine *e)
{
    struct ns *ns = ns_new(e);
    int r;

    if (!ns)
        return -ENOMEM;
    e->ns = ns; /* transactions look for it: before the collector's thread begins */
    r = cache_open(ns);
    if (!r)
        r = usage_load(ns);
    if (!r && !e->opt.readonly) {
        r = ino_open(ns);
        if (!r)
            r = orphans_delete(ns);
        if (!r)
            r = gc_start(ns);
    }
    if (r) {
        e->ns = NULL;
        ns_free(ns);
        return r;
    }
    return 0;
}

void ns_close(struct engine *e, struct ns *ns)
{
    gc_stop(ns);
    if (!e->opt.readonly)
        ino_close(ns);
    e->ns = NULL;
    ns_free(ns);
}
