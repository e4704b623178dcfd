/* Settings: what the caller says, else the environment, else defaults. */
#include "dev.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

/* One that is configured. */
struct entry {
    char name[UROCE_NAME_MAX];
    char *addresses; /* NULL: all of the machine */
};

struct entries {
    struct entry at[UROCE_DEVICES_MAX];
    unsigned int n;
    const char *origin; /* the variable that they come from */
    char *text;         /* cut into names and addresses; owned */
};

static int own(const char **s, const char *env)
{
    const char *v = *s ? *s : secure_getenv(env);
    *s = NULL;
    if (!v || !*v)
        return 0;
    *s = strdup(v);
    return *s ? 0 : -ENOMEM;
}

/* A switch of the environment: "1" or "0". */
static int env_switch(const char *name, int *value, char *err, size_t err_size)
{
    const char *v = secure_getenv(name);
    if (!v || !*v)
        return 0;
    if ((v[0] != '0' && v[0] != '1') || v[1]) {
        snprintf(err, err_size, "%s=%s: 1 or 0 is meant", name, v);
        return -EINVAL;
    }
    *value = v[0] == '1';
    return 0;
}

/* It becomes a file's name in the sysfs view, and a word of command lines. */
static bool name_is_good(const char *name)
{
    size_t n = strlen(name);
    if (n == 0 || n >= UROCE_NAME_MAX || !isalnum((unsigned char)name[0]))
        return false;
    for (const char *c = name; *c; c++)
        if (!isalnum((unsigned char)*c) && !strchr("_-.", *c))
            return false;
    return true;
}

static const struct entry *entry_named(const struct entries *e, const char *name)
{
    for (unsigned int i = 0; i < e->n; i++)
        if (strcmp(e->at[i].name, name) == 0)
            return &e->at[i];
    return NULL;
}

static char *trim(char *s)
{
    s += strspn(s, " \t\n");
    for (size_t n = strlen(s); n && strchr(" \t\n", s[n - 1]); n--)
        s[n - 1] = '\0';
    return s;
}

/* "NAME=ADDRESS[,...]" */
static int add_entry(struct entries *e, char *text, char *err, size_t err_size)
{
    char *addresses = strchr(text, '=');
    if (!addresses) {
        snprintf(err, err_size, "UROCE_DEVICES: '%s': NAME=ADDRESS[,ADDRESS...];... is meant", text);
        return -EINVAL;
    }
    *addresses++ = '\0';
    const char *name = trim(text);
    if (!name_is_good(name))
        snprintf(err, err_size, "UROCE_DEVICES: '%s' is no name: up to %d letters, digits, '_', '-', '.'", name,
                 UROCE_NAME_MAX - 1);
    else if (entry_named(e, name))
        snprintf(err, err_size, "UROCE_DEVICES: %s is there twice", name);
    else if (!*trim(addresses))
        snprintf(err, err_size, "UROCE_DEVICES: %s has no address", name);
    else if (e->n == UROCE_DEVICES_MAX)
        snprintf(err, err_size, "UROCE_DEVICES: more than %d devices", UROCE_DEVICES_MAX);
    else {
        struct entry *n = &e->at[e->n++];
        snprintf(n->name, sizeof n->name, "%s", name);
        n->addresses = trim(addresses);
        return 0;
    }
    return -EINVAL;
}

static int read_entries(struct entries *e, char *err, size_t err_size)
{
    const char *devices = secure_getenv("UROCE_DEVICES"), *address = secure_getenv("UROCE_ADDRESS");
    bool several = devices && *devices, one = address && *address;
    *e = (struct entries){.origin = several ? "UROCE_DEVICES" : "UROCE_ADDRESS"};
    if (several && one) {
        snprintf(err, err_size, "UROCE_DEVICES and UROCE_ADDRESS are both set: unset one of them");
        return -EINVAL;
    }
    if (several || one) {
        e->text = strdup(several ? devices : address);
        if (!e->text)
            return -ENOMEM;
    }
    if (!several) {
        snprintf(e->at[0].name, sizeof e->at[0].name, "uroce0");
        e->at[0].addresses = e->text;
        e->n = 1;
        return 0;
    }
    char *save = NULL;
    for (char *w = strtok_r(e->text, ";", &save); w; w = strtok_r(NULL, ";", &save)) {
        char *text = trim(w);
        int r = *text ? add_entry(e, text, err, err_size) : 0;
        if (r) {
            free(e->text);
            return r;
        }
    }
    if (e->n)
        return 0;
    snprintf(err, err_size, "UROCE_DEVICES: no device is given");
    free(e->text);
    return -EINVAL;
}

static void describe(struct uroce_device_info *ret, const char *name, unsigned int index, const struct dev_address *at,
                     int n)
{
    *ret = (struct uroce_device_info){.node_guid = dev_guid(at, index), .gids = (unsigned int)n};
    snprintf(ret->name, sizeof ret->name, "%s", name);
    for (int k = 0; k < n; k++) {
        ret->gid[k].gid = at[k].addr.gid;
        ret->gid[k].interface = at[k].ifindex;
    }
}

int uroce_list_devices(struct uroce_device_info *ret, int max, char *err, size_t err_size)
{
    struct dev_address at[DEV_ADDRESSES_MAX];
    struct entries e;
    if (err_size)
        err[0] = '\0';
    int r = read_entries(&e, err, err_size);
    if (r)
        return r;
    struct uroce_device_info all[UROCE_DEVICES_MAX];
    int n = 0, missing = 0;
    for (unsigned int i = 0; i < e.n; i++) {
        r = dev_addresses(e.at[i].addresses, e.origin, at, DEV_ADDRESSES_MAX, err, err_size);
        if (r == -EADDRNOTAVAIL) /* the others are there all the same */
            missing = r;
        else if (r < 0)
            break;
        else
            describe(&all[n++], e.at[i].name, i, at, r);
    }
    free(e.text);
    if (r < 0 && r != -EADDRNOTAVAIL)
        return r;
    for (int i = 0; i < max && i < n; i++)
        ret[i] = all[i];
    return n ? n : missing;
}

/* The first whose addresses are there; the first of all, if none's are. */
static const struct entry *first_usable(const struct entries *e)
{
    struct dev_address at[DEV_ADDRESSES_MAX];
    char err[256];
    for (unsigned int i = 0; i < e->n; i++)
        if (dev_addresses(e->at[i].addresses, e->origin, at, DEV_ADDRESSES_MAX, err, sizeof err) != -EADDRNOTAVAIL)
            return &e->at[i];
    return &e->at[0];
}

/* Sets name and addresses, which the caller's configuration may have. */
static int choose(struct uroce_config *c, unsigned int *ret_index, const char **ret_origin, char *err, size_t err_size)
{
    struct entries e;
    const char *name = c->name, *addresses = c->addresses;
    c->name = c->addresses = NULL;
    *ret_index = 0;
    *ret_origin = "addresses";
    if (addresses) {
        if (name && !name_is_good(name)) {
            snprintf(err, err_size, "'%s' is no name for a device", name);
            return -EINVAL;
        }
        c->name = strdup(name ? name : "uroce0");
        c->addresses = *addresses ? strdup(addresses) : NULL;
        return c->name && (c->addresses || !*addresses) ? 0 : -ENOMEM;
    }
    int r = read_entries(&e, err, err_size);
    if (r)
        return r;
    const struct entry *n = name ? entry_named(&e, name) : first_usable(&e);
    if (n) {
        c->name = strdup(n->name);
        c->addresses = n->addresses ? strdup(n->addresses) : NULL;
        *ret_index = (unsigned int)(n - e.at);
        *ret_origin = e.origin;
        r = c->name && (c->addresses || !n->addresses) ? 0 : -ENOMEM;
    } else {
        snprintf(err, err_size, "no device %s here (UROCE_DEVICES): the first of %u is %s", name, e.n, e.at[0].name);
        r = -ENODEV;
    }
    free(e.text);
    return r;
}

int dev_config_init(struct uroce_config *c, const struct uroce_config *cfg, unsigned int *ret_index,
                    const char **ret_origin, char *err, size_t err_size)
{
    *c = cfg ? *cfg : (struct uroce_config){.congestion_control = -1};
    int r = choose(c, ret_index, ret_origin, err, err_size);
    int r2 = own(&c->capture, "UROCE_CAPTURE");
    int r3 = own(&c->capture_filter, "UROCE_CAPTURE_FILTER");
    int r4 = own(&c->impair, "UROCE_IMPAIR");
    int r5 = own(&c->slots, "UROCE_SLOTS");
    if (r || r2 || r3 || r4 || r5) {
        dev_config_done(c);
        return r ? r : -ENOMEM;
    }
    int cc = c->congestion_control < 0 ? 1 : c->congestion_control;
    r = 0;
    if (!c->no_selective)
        r = env_switch("UROCE_NO_SELECTIVE_REPEAT", &c->no_selective, err, err_size);
    if (!r && c->congestion_control < 0)
        r = env_switch("UROCE_CONGESTION_CONTROL", &cc, err, err_size);
    int shm = 1, full = 0;
    if (!r)
        r = env_switch("UROCE_SHM", &shm, err, err_size);
    if (!r)
        r = env_switch("UROCE_FULL_ICRC", &full, err, err_size);
    c->no_shm |= !shm;
    c->full_icrc |= full;
    c->congestion_control = cc;
    if (r)
        dev_config_done(c);
    return r;
}

void dev_config_done(struct uroce_config *c)
{
    free((char *)(uintptr_t)c->name);
    free((char *)(uintptr_t)c->addresses);
    free((char *)(uintptr_t)c->capture);
    free((char *)(uintptr_t)c->capture_filter);
    free((char *)(uintptr_t)c->impair);
    free((char *)(uintptr_t)c->slots);
    memset(c, 0, sizeof *c);
}
