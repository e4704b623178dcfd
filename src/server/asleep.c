/*
 * What tenants_file has of tenants that are not there: who takes one out of the configuration may put it back, and
 * finds its credentials and limits again. Until then they let nobody in, and limit nothing. They go when somebody says
 * so (credential delete, tenant delete), never by themselves; and no tenant that is made at run time gets them by
 * having the name.
 */
#include "made.h"

#include "data.h"

#include "base/crypto.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

struct asleep_limit {
    struct list link;
    char *name, *key, *value;
};

static void free_limit(struct asleep_limit *l)
{
    free(l->name);
    free(l->key);
    free(l->value);
    free(l);
}

int asleep_limit(struct srv *srv, const char *name, const char *key, const char *value)
{
    struct asleep_limit *l = calloc(1, sizeof *l);

    if (!l)
        return -ENOMEM;
    *l = (struct asleep_limit){.name = strdup(name), .key = strdup(key), .value = strdup(value)};
    if (!l->name || !l->key || !l->value) {
        free_limit(l);
        return -ENOMEM;
    }
    list_push_back(&srv->asleep_limits, &l->link);
    return 0;
}

struct made_cred *asleep_cred_find(struct srv *srv, const char *name)
{
    list_for_each (it, &srv->asleep) {
        struct made_cred *c = list_entry(it, struct made_cred, link);
        if (!strcmp(c->text.name, name))
            return c;
    }
    return NULL;
}

struct made_cred *asleep_twin(struct srv *srv, const struct made_cred *c)
{
    list_for_each (it, &srv->asleep) {
        struct made_cred *k = list_entry(it, struct made_cred, link);
        if (c->text.cn ? k->text.cn && !strcmp(k->text.cn, c->text.cn)
                       : !k->text.cn && pst_equal_ct(k->token_hash, c->token_hash, sizeof c->token_hash))
            return k;
    }
    return NULL;
}

unsigned asleep_creds(const struct srv *srv)
{
    unsigned n = 0;

    list_for_each (it, &srv->asleep)
        n++;
    return n;
}

void asleep_limits_each(struct srv *srv, void (*fn)(void *arg, const char *name, const char *key, const char *value),
                        void *arg)
{
    list_for_each (it, &srv->asleep_limits) {
        const struct asleep_limit *l = list_entry(it, struct asleep_limit, link);
        fn(arg, l->name, l->key, l->value);
    }
}

unsigned asleep_of(struct srv *srv, const char *tenant)
{
    unsigned n = 0;

    list_for_each (it, &srv->asleep)
        n += !strcmp(list_entry(it, struct made_cred, link)->text.tenant, tenant);
    list_for_each (it, &srv->asleep_limits)
        n += !strcmp(list_entry(it, struct asleep_limit, link)->name, tenant);
    return n;
}

static void move_of(const char *tenant, struct list *creds, struct list *limits, struct list *to_creds,
                    struct list *to_limits)
{
    list_for_each_safe (it, creds) {
        if (!strcmp(list_entry(it, struct made_cred, link)->text.tenant, tenant)) {
            list_del(it);
            list_push_back(to_creds, it);
        }
    }
    list_for_each_safe (it, limits) {
        if (!strcmp(list_entry(it, struct asleep_limit, link)->name, tenant)) {
            list_del(it);
            list_push_back(to_limits, it);
        }
    }
}

static void free_all(struct list *creds, struct list *limits)
{
    struct list *l;

    while ((l = list_pop_front(creds)))
        made_cred_free(list_entry(l, struct made_cred, link));
    while ((l = list_pop_front(limits)))
        free_limit(list_entry(l, struct asleep_limit, link));
}

int asleep_delete(struct srv *srv, const char *tenant, char *err, size_t err_size)
{
    struct list creds = LIST_INIT(creds), limits = LIST_INIT(limits);
    int r;

    move_of(tenant, &srv->asleep, &srv->asleep_limits, &creds, &limits);
    r = tenants_file_keep(srv, err, err_size);
    if (r < 0)
        move_of(tenant, &creds, &limits, &srv->asleep, &srv->asleep_limits);
    free_all(&creds, &limits);
    return r;
}

void asleep_free(struct srv *srv)
{
    free_all(&srv->asleep, &srv->asleep_limits);
}
