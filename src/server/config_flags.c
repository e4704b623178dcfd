/* Flags: what they say is written over the text of the file. */
#include "config_rows.h"

#include "base/err.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

int config_set_string(char **at, const char *value)
{
    char *p = strdup(value);

    if (!p)
        return -ENOMEM;
    free(*at);
    *at = p;
    return 0;
}

/* Room for one more element at the end of an array that cyaml_free will free. */
static void *grow(void *array, unsigned *count, size_t size)
{
    char **at = array;
    char *p = realloc(*at, (*count + 1) * size);

    if (!p)
        return NULL;
    *at = p;
    memset(p + *count * size, 0, size);
    return p + (*count)++ * size;
}

int config_add_string(char ***list, unsigned *count, const char *value)
{
    char **slot = grow(list, count, sizeof *slot);
    return slot ? config_set_string(slot, value) : -ENOMEM;
}

struct field {
    const char *name;
    size_t offset;
};

/* "a=1,b,c=2" into the char * fields of obj; a name alone means true. */
static int set_fields(void *obj, const struct field *fields, size_t n, const char *value, char *err, size_t err_size)
{
    cleanup_free char *copy = strdup(value);
    char *save = NULL;
    int r = copy ? 0 : -ENOMEM;

    for (char *p = copy ? strtok_r(copy, ",", &save) : NULL; r == 0 && p; p = strtok_r(NULL, ",", &save)) {
        char *eq = strchr(p, '=');
        size_t i;
        if (eq)
            *eq = 0;
        for (i = 0; i < n && strcmp(fields[i].name, p) != 0; i++)
            ;
        if (i == n) {
            size_t len = (size_t)snprintf(err, err_size, "unknown key \"%.40s\"; known:", p);
            for (i = 0; i < n && len < err_size; i++)
                len += (size_t)snprintf(err + len, err_size - len, " %s", fields[i].name);
            return -EINVAL;
        }
        r = config_set_string((char **)((char *)obj + fields[i].offset), eq ? eq + 1 : "true");
    }
    return r;
}

static int flag_pool(struct text_values *v, const char *value, char *err, size_t err_size)
{
    static const struct field fields[] = {{"quota", offsetof(struct text_pool, quota)},
                                          {"uid", offsetof(struct text_pool, uid)},
                                          {"gid", offsetof(struct text_pool, gid)},
                                          {"mode", offsetof(struct text_pool, mode)}};
    size_t n = strcspn(value, ":");
    struct text_pool *p = grow(&v->pools, &v->pools_count, sizeof *p);

    if (!p || !(p->label = strndup(value, n)))
        return -ENOMEM;
    return set_fields(p, fields, ARRAY_SIZE(fields), value[n] ? value + n + 1 : "", err, err_size);
}

static int flag_container(struct text_values *v, const char *value, char *err, size_t err_size)
{
    static const struct field fields[] = {{"chunk_size", offsetof(struct text_container, chunk_size)},
                                          {"quota", offsetof(struct text_container, quota)},
                                          {"uid", offsetof(struct text_container, uid)},
                                          {"gid", offsetof(struct text_container, gid)},
                                          {"mode", offsetof(struct text_container, mode)}};
    size_t pool = strcspn(value, "/:"), end = strcspn(value, ":");
    struct text_pool *p = NULL;
    struct text_container *k;

    if (value[pool] != '/') {
        snprintf(err, err_size, "must be POOL/LABEL");
        return -EINVAL;
    }
    for (unsigned i = 0; i < v->pools_count && !p; i++)
        if (v->pools[i].label && strlen(v->pools[i].label) == pool && !strncmp(v->pools[i].label, value, pool))
            p = &v->pools[i];
    if (!p) {
        p = grow(&v->pools, &v->pools_count, sizeof *p);
        if (!p || !(p->label = strndup(value, pool)))
            return -ENOMEM;
    }
    k = grow(&p->containers, &p->containers_count, sizeof *k);
    if (!k || !(k->label = strndup(value + pool + 1, end - pool - 1)))
        return -ENOMEM;
    return set_fields(k, fields, ARRAY_SIZE(fields), value[end] ? value + end + 1 : "", err, err_size);
}

static int flag_credential(struct text_values *v, const char *value, char *err, size_t err_size)
{
#define F(f)                                                                                                           \
    {                                                                                                                  \
#f, offsetof(struct text_credential, f)                                                                        \
    }
    static const struct field fields[] = {F(name), F(token_file), F(cn), F(uid), F(gid), F(any_uid), F(admin),
                                          F(origin), F(tenant)};
#undef F
    struct text_credential *k = grow(&v->credentials, &v->credentials_count, sizeof *k);

    return k ? set_fields(k, fields, ARRAY_SIZE(fields), value, err, err_size) : -ENOMEM;
}

static int flag_list(const struct option_row *o, struct srv_text *t, const char *value)
{
    char ***list = (char ***)((char *)t->v + o->text);
    unsigned *count = (unsigned *)(list + 1);

    if (!t->set[o - config_rows]) { /* the first flag drops the file's list */
        for (unsigned i = 0; i < *count; i++)
            free((*list)[i]);
        free(*list);
        *list = NULL;
        *count = 0;
    }
    return config_add_string(list, count, value);
}

int srv_config_flag(struct srv_config *c, const char *name, const char *value, char *err, size_t err_size)
{
    struct srv_text *t = c->text;
    const struct option_row *o = config_rows;
    char why[200] = "";
    int r;

    while (o < config_rows + config_nrows && strcmp(o->flag.name, name) != 0)
        o++;
    if (o == config_rows + config_nrows) {
        snprintf(err, err_size, "no option --%.60s", name);
        return -EINVAL;
    }
    switch (o->kind) {
    case K_LIST:
        r = flag_list(o, t, value);
        break;
    case K_POOL:
        r = flag_pool(t->v, value, why, sizeof why);
        break;
    case K_CONTAINER:
        r = flag_container(t->v, value, why, sizeof why);
        break;
    case K_CREDENTIAL:
        r = flag_credential(t->v, value, why, sizeof why);
        break;
    default:
        r = config_set_string((char **)((char *)t->v + o->text), value ? value : "true");
    }
    t->set[o - config_rows] = true;
    if (r < 0)
        snprintf(err, err_size, "--%s: \"%.100s\": %s", name, value ? value : "", why[0] ? why : err_text(r));
    return r;
}
