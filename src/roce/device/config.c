/* Settings: what the caller says, else the environment, else defaults. */
#include "dev.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

static int own(const char **s, const char *env)
{
    const char *v = *s ? *s : getenv(env);
    *s = NULL;
    if (!v || !*v)
        return 0;
    *s = strdup(v);
    return *s ? 0 : -ENOMEM;
}

/* A switch of the environment: "1" or "0". */
static int env_switch(const char *name, int *value, char *err, size_t err_size)
{
    const char *v = getenv(name);
    if (!v || !*v)
        return 0;
    if ((v[0] != '0' && v[0] != '1') || v[1]) {
        snprintf(err, err_size, "%s=%s: 1 or 0 is meant", name, v);
        return -EINVAL;
    }
    *value = v[0] == '1';
    return 0;
}

int dev_config_init(struct uroce_config *c, const struct uroce_config *cfg, char *err, size_t err_size)
{
    *c = cfg ? *cfg : (struct uroce_config){.congestion_control = -1};
    int r = own(&c->addresses, "UROCE_ADDRESS");
    int r2 = own(&c->capture, "UROCE_CAPTURE");
    int r3 = own(&c->capture_filter, "UROCE_CAPTURE_FILTER");
    int r4 = own(&c->impair, "UROCE_IMPAIR");
    int r5 = own(&c->slots, "UROCE_SLOTS");
    if (r || r2 || r3 || r4 || r5) {
        dev_config_done(c);
        return -ENOMEM;
    }
    int cc = c->congestion_control < 0 ? 1 : c->congestion_control;
    r = 0;
    if (!cfg)
        r = env_switch("UROCE_NO_SELECTIVE_REPEAT", &c->no_selective, err, err_size);
    if (!r && c->congestion_control < 0)
        r = env_switch("UROCE_CONGESTION_CONTROL", &cc, err, err_size);
    c->congestion_control = cc;
    if (r)
        dev_config_done(c);
    return r;
}

void dev_config_done(struct uroce_config *c)
{
    free((char *)(uintptr_t)c->addresses);
    free((char *)(uintptr_t)c->capture);
    free((char *)(uintptr_t)c->capture_filter);
    free((char *)(uintptr_t)c->impair);
    free((char *)(uintptr_t)c->slots);
    memset(c, 0, sizeof *c);
}
