/*
 * The daemon's configuration: a YAML text up to the first NUL, then flags, each a name and a value that end with NUL.
 * What is taken is within the documented limits, and no description of it shows a token.
 */
#include "fuzz.h"

#include "server/config.h"
#include "store/perm.h"

#include "base/rng.h"
#include "base/util.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#define TOKEN "a-token-of-more-than-16-bytes"

static void on_line(void *user, const char *key, const char *value)
{
    (void)user;
    CHECK(key && value && !strstr(value, TOKEN));
}

static void check(const struct srv_config *c)
{
    CHECK(c->store_url && c->ncontrol_listen && c->data_listen);
    CHECK(c->data_shards >= 1 && c->data_shards <= SRV_SHARDS_MAX);
    CHECK(c->data_credits == 0 || (c->data_credits >= 4 && c->data_credits <= 1024)); /* 0: the fabric's default */
    CHECK(c->data_buffer_bytes >= 64 * KiB && c->data_buffer_bytes <= 8 * MiB && c->lease_ms >= 1000);
    CHECK(!c->tls_ca == !c->tls_cert && !c->tls_ca == !c->tls_key);
    for (unsigned i = 0; i < c->ncontrol_listen; i++)
        CHECK(srv_addr_is_local(c->control_listen[i]) || c->tls_ca || c->insecure);
    for (unsigned i = 0; i < c->npools; i++) {
        CHECK(!pst_label_check(c->pools[i].label) && !(c->pools[i].mode & ~07777u));
        for (unsigned k = 0; k < c->pools[i].ncontainers; k++)
            CHECK(!pst_label_check(c->pools[i].containers[k].label));
    }
    for (unsigned i = 0; i < c->ncredentials; i++) {
        const struct srv_credential *k = &c->credentials[i];
        CHECK(k->name && !!k->token + !!k->token_file + !!k->cn == 1 && (!k->token || strlen(k->token) >= 16));
    }
    srv_config_describe(c, on_line, NULL);
}

/* The file that the loader reads, by a name. */
static int yaml_fd(const char *text, size_t n, char path[64])
{
    static int fd = -1;

    if (fd < 0)
        fd = memfd_create("config", MFD_CLOEXEC);
    CHECK(fd >= 0 && !ftruncate(fd, 0) && pwrite(fd, text, n, 0) == (ssize_t)n);
    snprintf(path, 64, "/proc/self/fd/%d", fd);
    return fd;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *text = (const char *)data, *p, *end = text + size;
    struct srv_config *c = srv_config_new();
    char path[64], err[400] = "";
    size_t n = strnlen(text, size);
    int r = 0;

    CHECK(c);
    if (n > 0) {
        yaml_fd(text, n, path);
        r = srv_config_load(c, path, err, sizeof err);
    }
    for (p = text + n + 1; r == 0 && p < end;) {
        char *name = strndup(p, (size_t)(end - p)), *value;
        p += strlen(name) + 1;
        value = p < end ? strndup(p, (size_t)(end - p)) : NULL;
        r = srv_config_flag(c, name, value ? value : "", err, sizeof err);
        p += value ? strlen(value) + 1 : 0;
        free(name);
        free(value);
    }
    if (r == 0)
        r = srv_config_finish(c, err, sizeof err);
    if (r == 0)
        check(c);
    else
        CHECK(*err);
    srv_config_free(c);
    return 0;
}

/* ---- samples ---- */

static const char *const lines[] = {
    "store: {url: 'local:/srv/p', options: [create=1, size=1G]}\n",
    "store:\n  url: local:/srv/p\n",
    "filters: ['delay:op=write,ms=200', 'error:errno=EIO,every=3']\n",
    "pools:\n- label: ml\n  quota: 1T\n  uid: 1000\n  mode: '0750'\n  containers:\n  - {label: set, chunk_size: 64K}\n",
    "control:\n  listen: ['127.0.0.1:7440', 'unix:/run/p.sock', '[::1]:5']\n  lease: 10s\n  max_sessions: 100\n",
    "control: {listen: ['10.0.0.1:7440'], tls: {ca: /a, cert: /b, key: /c}}\n",
    "data: {listen: '127.0.0.1:0', shards: 2, credits: 64, spin_us: 0, buffer_size: 1M, security: clear}\n",
    "credentials:\n- {name: a, token: '" TOKEN "', any_uid: true}\n- {name: b, cn: host, admin: yes}\n",
    "metrics: {listen: 'off'}\n",
    "log: debug\nuser: nobody\ndrain: 500ms\n",
};
static const char *const flags[][2] = {
    {"store", "local:/x"},   {"store-option", "create=1"}, {"pool", "ml:quota=1G"}, {"container", "ml/x:chunk_size=1M"},
    {"listen", "[::1]:7440"}, {"insecure", ""},            {"lease", "1m"},         {"shards", "3"},
    {"metrics", "off"},       {"credential", "name=x,token_file=/etc/t,uid=5,admin"}, {"buffer-size", "512K"},
};

size_t fuzz_sample(uint64_t n, uint8_t *buf, size_t cap)
{
    struct rng r;
    size_t len = 0;

    rng_seed(&r, n);
    for (size_t i = 0; i < ARRAY_SIZE(lines); i++)
        if (rng_below(&r, 3) == 0)
            len += (size_t)snprintf((char *)buf + len, cap - len, "%s", lines[i]);
    buf[len++] = 0;
    for (size_t i = 0; i < ARRAY_SIZE(flags); i++)
        if (rng_below(&r, 8) == 0)
            len += (size_t)snprintf((char *)buf + len, cap - len, "%s%c%s", flags[i][0], 0, flags[i][1]) + 1;
    return len;
}
