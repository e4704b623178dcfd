/* The file: its schema for libcyaml, errors in one line, and the lines of its keys. */
#include "config_text.h"

#include <cyaml/cyaml.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <yaml.h>

#define FILE_MAX  (1 * MiB)
#define ITEMS_MAX 1024

#define STR(key, type, field)         CYAML_FIELD_STRING_PTR(key, CYAML_FLAG_OPTIONAL, type, field, 0, 4096)
#define MAP(key, type, field, fields) CYAML_FIELD_MAPPING(key, CYAML_FLAG_OPTIONAL, type, field, fields)
#define SEQ(key, type, field, entry)                                                                                   \
    CYAML_FIELD_SEQUENCE(key, CYAML_FLAG_POINTER | CYAML_FLAG_OPTIONAL, type, field, &(entry), 0, ITEMS_MAX)

static const cyaml_schema_value_t string_entry = {CYAML_VALUE_STRING(CYAML_FLAG_POINTER, char *, 0, 4096)};

static const cyaml_schema_field_t store_fields[] = {
    STR("url", struct text_store, url),
    SEQ("options", struct text_store, options, string_entry),
    CYAML_FIELD_END,
};
static const cyaml_schema_field_t backend_fields[] = {
    STR("url", struct text_backend, url),
    STR("token_file", struct text_backend, token_file),
    STR("ca", struct text_backend, ca),
    STR("cert", struct text_backend, cert),
    STR("key", struct text_backend, key),
    STR("insecure", struct text_backend, insecure),
    STR("provider", struct text_backend, provider),
    STR("require_rdma", struct text_backend, require_rdma),
    STR("timeout", struct text_backend, timeout),
    CYAML_FIELD_END,
};
static const cyaml_schema_field_t container_fields[] = {
    STR("label", struct text_container, label),
    STR("chunk_size", struct text_container, chunk_size),
    STR("quota", struct text_container, quota),
    STR("uid", struct text_container, uid),
    STR("gid", struct text_container, gid),
    STR("mode", struct text_container, mode),
    CYAML_FIELD_END,
};
static const cyaml_schema_value_t container_entry = {
    CYAML_VALUE_MAPPING(CYAML_FLAG_DEFAULT, struct text_container, container_fields)};
static const cyaml_schema_field_t pool_fields[] = {
    STR("label", struct text_pool, label),
    STR("quota", struct text_pool, quota),
    STR("uid", struct text_pool, uid),
    STR("gid", struct text_pool, gid),
    STR("mode", struct text_pool, mode),
    SEQ("containers", struct text_pool, containers, container_entry),
    CYAML_FIELD_END,
};
static const cyaml_schema_value_t pool_entry = {CYAML_VALUE_MAPPING(CYAML_FLAG_DEFAULT, struct text_pool, pool_fields)};
static const cyaml_schema_field_t tls_fields[] = {
    STR("ca", struct text_tls, ca),
    STR("cert", struct text_tls, cert),
    STR("key", struct text_tls, key),
    CYAML_FIELD_END,
};
static const cyaml_schema_field_t control_fields[] = {
    SEQ("listen", struct text_control, listen, string_entry),
    STR("insecure", struct text_control, insecure),
    STR("local_token", struct text_control, local_token),
    STR("lease", struct text_control, lease),
    STR("max_sessions", struct text_control, max_sessions),
    MAP("tls", struct text_control, tls, tls_fields),
    CYAML_FIELD_END,
};
static const cyaml_schema_field_t data_fields[] = {
    STR("listen", struct text_data, listen),
    STR("advertise", struct text_data, advertise),
    STR("provider", struct text_data, provider),
    STR("require_rdma", struct text_data, require_rdma),
    STR("security", struct text_data, security),
    STR("shards", struct text_data, shards),
    STR("credits", struct text_data, credits),
    STR("spin_us", struct text_data, spin_us),
    STR("buffer_size", struct text_data, buffer_size),
    STR("buffer_memory", struct text_data, buffer_memory),
    STR("export_listen", struct text_data, export_listen),
    STR("export_memory", struct text_data, export_memory),
    STR("third_party", struct text_data, third_party),
    STR("max_connections", struct text_data, max_connections),
    CYAML_FIELD_END,
};
static const cyaml_schema_field_t credential_fields[] = {
    STR("name", struct text_credential, name),
    STR("token", struct text_credential, token),
    STR("token_file", struct text_credential, token_file),
    STR("cn", struct text_credential, cn),
    STR("uid", struct text_credential, uid),
    STR("gid", struct text_credential, gid),
    STR("any_uid", struct text_credential, any_uid),
    STR("admin", struct text_credential, admin),
    STR("origin", struct text_credential, origin),
    STR("tenant", struct text_credential, tenant),
    CYAML_FIELD_END,
};
static const cyaml_schema_value_t credential_entry = {
    CYAML_VALUE_MAPPING(CYAML_FLAG_DEFAULT, struct text_credential, credential_fields)};
static const cyaml_schema_field_t tenant_fields[] = {
    STR("name", struct text_tenant, name),
    SEQ("containers", struct text_tenant, containers, string_entry),
    SEQ("filters", struct text_tenant, filters, string_entry),
    STR("quota", struct text_tenant, quota),
    STR("quota_objects", struct text_tenant, quota_objects),
    STR("weight", struct text_tenant, weight),
    STR("rate", struct text_tenant, rate),
    STR("rate_ops", struct text_tenant, rate_ops),
    STR("burst", struct text_tenant, burst),
    STR("burst_ops", struct text_tenant, burst_ops),
    STR("max_sessions", struct text_tenant, max_sessions),
    STR("max_connections", struct text_tenant, max_connections),
    STR("shards", struct text_tenant, shards),
    STR("buffer_memory", struct text_tenant, buffer_memory),
    STR("cache", struct text_tenant, cache),
    STR("read_ahead", struct text_tenant, read_ahead),
    STR("backend_token_file", struct text_tenant, backend_token_file),
    STR("backend_cert", struct text_tenant, backend_cert),
    STR("backend_key", struct text_tenant, backend_key),
    CYAML_FIELD_END,
};
static const cyaml_schema_value_t tenant_entry = {
    CYAML_VALUE_MAPPING(CYAML_FLAG_DEFAULT, struct text_tenant, tenant_fields)};
static const cyaml_schema_field_t limits_fields[] = {
    STR("bytes", struct text_limits, bytes),
    STR("operations", struct text_limits, operations),
    STR("window", struct text_limits, window),
    CYAML_FIELD_END,
};
static const cyaml_schema_field_t metrics_fields[] = {
    STR("listen", struct text_metrics, listen),
    STR("token_file", struct text_metrics, token_file),
    CYAML_FIELD_END,
};
static const cyaml_schema_field_t audit_fields[] = {
    STR("file", struct text_audit, file),
    STR("size", struct text_audit, size),
    STR("keep", struct text_audit, keep),
    CYAML_FIELD_END,
};
static const cyaml_schema_field_t top_fields[] = {
    STR("role", struct text_values, role),
    MAP("backend", struct text_values, backend, backend_fields),
    MAP("store", struct text_values, store, store_fields),
    SEQ("filters", struct text_values, filters, string_entry),
    STR("cache", struct text_values, cache),
    STR("read_ahead", struct text_values, read_ahead),
    SEQ("pools", struct text_values, pools, pool_entry),
    MAP("control", struct text_values, control, control_fields),
    MAP("data", struct text_values, data, data_fields),
    SEQ("credentials", struct text_values, credentials, credential_entry),
    SEQ("tenants", struct text_values, tenants, tenant_entry),
    MAP("limits", struct text_values, limits, limits_fields),
    MAP("metrics", struct text_values, metrics, metrics_fields),
    MAP("audit", struct text_values, audit, audit_fields),
    STR("log", struct text_values, log),
    STR("log_slow", struct text_values, log_slow),
    STR("tenants_file", struct text_values, tenants_file),
    STR("user", struct text_values, user),
    STR("drain", struct text_values, drain),
    CYAML_FIELD_END,
};
static const cyaml_schema_value_t top_schema = {
    CYAML_VALUE_MAPPING(CYAML_FLAG_POINTER, struct text_values, top_fields)};

/* libcyaml tells an error in several lines: what, then where, innermost first. Kept: the first of each. */
struct report {
    char what[256];
    char where[256];
};

static void trim(char *s)
{
    size_t n = strlen(s);
    while (n > 0 && (s[n - 1] == '\n' || s[n - 1] == ' '))
        s[--n] = 0;
}

static void note(cyaml_log_t level, void *user, const char *fmt, va_list args) __attribute__((format(printf, 3, 0)));
static void note(cyaml_log_t level, void *user, const char *fmt, va_list args)
{
    struct report *r = user;
    char line[256];
    const char *text = line;

    if (level < CYAML_LOG_ERROR)
        return;
    vsnprintf(line, sizeof line, fmt, args);
    trim(line);
    if (!strncmp(text, "Load: ", 6))
        text += 6;
    if (strstr(text, "(line:")) {
        if (!r->where[0])
            snprintf(r->where, sizeof r->where, "%s", text + strspn(text, " "));
    } else if (!r->what[0] && strncmp(text, "Backtrace", 9) != 0) {
        snprintf(r->what, sizeof r->what, "%s", text);
    }
}

/* The library's terms in a user's. */
static void plain_words(const struct report *r, const char *otherwise, char *ret, size_t size)
{
    static const struct {
        const char *kind, *words;
    } kinds[] = {{"MAPPING", "must be a map: KEY: VALUE, or {KEY: VALUE}"},
                 {"SEQUENCE", "must be a list: [A, B], or a line \"- A\" for each"},
                 {"STRING", "must be a single value"}};
    const char *field = strchr(r->where, '\''), *key = "Unexpected key: ", *want = "Expecting ";
    int field_len = field ? (int)strcspn(field + 1, "'") : 0;

    if (!strncmp(r->what, key, strlen(key))) {
        snprintf(ret, size, "there is no key \"%s\"; penstock.yaml(5) has them all", r->what + strlen(key));
        return;
    }
    for (size_t i = 0; field && i < ARRAY_SIZE(kinds) && !strncmp(r->what, want, strlen(want)); i++)
        if (!strncmp(r->what + strlen(want), kinds[i].kind, strlen(kinds[i].kind))) {
            snprintf(ret, size, "%.*s: %s", field_len, field + 1, kinds[i].words);
            return;
        }
    snprintf(ret, size, "%s%s%s", r->what[0] ? r->what : otherwise, field ? ", " : "", field ? r->where : "");
}

static const cyaml_config_t cyaml_setup = {.log_level = CYAML_LOG_ERROR, .mem_fn = cyaml_mem};

void text_free_values(struct text_values *v)
{
    cyaml_free(&cyaml_setup, &top_schema, v, 0);
}

static int read_file(const char *path, char **ret, size_t *ret_len)
{
    FILE *f = fopen(path, "re");
    struct stat st;
    char *p = NULL;
    size_t n = 0;
    int r = 0;

    if (!f)
        return -errno;
    if (fstat(fileno(f), &st) < 0)
        r = -errno;
    else if (S_ISDIR(st.st_mode))
        r = -EISDIR;
    else if ((p = malloc(FILE_MAX + 1)) == NULL)
        r = -ENOMEM;
    if (r == 0) {
        n = fread(p, 1, FILE_MAX + 1, f);
        r = ferror(f) ? -EIO : n > FILE_MAX ? -EFBIG : 0;
    }
    fclose(f);
    if (r < 0) {
        free(p);
        return r;
    }
    *ret = p;
    *ret_len = n;
    return 0;
}

/* ---- where a key stands in the file ---- */

static yaml_node_t *child(yaml_document_t *doc, yaml_node_t *n, const char *key, size_t len)
{
    if (n->type != YAML_MAPPING_NODE)
        return NULL;
    for (yaml_node_pair_t *p = n->data.mapping.pairs.start; p < n->data.mapping.pairs.top; p++) {
        yaml_node_t *k = yaml_document_get_node(doc, p->key);
        if (k && k->type == YAML_SCALAR_NODE && k->data.scalar.length == len && !memcmp(k->data.scalar.value, key, len))
            return yaml_document_get_node(doc, p->value);
    }
    return NULL;
}

static yaml_node_t *item(yaml_document_t *doc, yaml_node_t *n, unsigned long i)
{
    if (n->type != YAML_SEQUENCE_NODE)
        return NULL;
    if ((size_t)(n->data.sequence.items.top - n->data.sequence.items.start) <= i)
        return NULL;
    return yaml_document_get_node(doc, n->data.sequence.items.start[i]);
}

/* Follows "a.b[1].c" as far as it goes. */
static unsigned find_line(yaml_document_t *doc, const char *key)
{
    yaml_node_t *n = yaml_document_get_root_node(doc), *last = n;

    while (n && *key) {
        if (*key == '[') {
            char *end;
            n = item(doc, n, strtoul(key + 1, &end, 10));
            key = end + (*end == ']');
        } else {
            size_t len = strcspn(key, ".[");
            n = child(doc, n, key, len);
            key += len;
        }
        key += *key == '.';
        last = n ? n : last;
    }
    /* A key that is not there is still wanted where it is missing: in its list entry. */
    return last && last != yaml_document_get_root_node(doc) ? (unsigned)last->start_mark.line + 1 : 0;
}

/* First of two equal keys in a mapping, anywhere in the document: the later one would win silently. */
static yaml_node_t *duplicate_key(yaml_document_t *doc)
{
    for (yaml_node_t *n = doc->nodes.start; n < doc->nodes.top; n++) {
        if (n->type != YAML_MAPPING_NODE)
            continue;
        for (yaml_node_pair_t *p = n->data.mapping.pairs.start; p < n->data.mapping.pairs.top; p++) {
            yaml_node_t *k = yaml_document_get_node(doc, p->key);
            if (k && k->type == YAML_SCALAR_NODE &&
                child(doc, n, (char *)k->data.scalar.value, k->data.scalar.length) !=
                    yaml_document_get_node(doc, p->value))
                return k;
        }
    }
    return NULL;
}

static bool load_document(const char *data, size_t len, yaml_document_t *ret)
{
    yaml_parser_t parser;
    bool ok;

    if (!yaml_parser_initialize(&parser))
        return false;
    yaml_parser_set_input_string(&parser, (const unsigned char *)data, len);
    ok = yaml_parser_load(&parser, ret);
    yaml_parser_delete(&parser);
    return ok;
}

/* libcyaml tells the mapping with an unknown key; this is the key's own line. `line` if it is not found. */
static unsigned unknown_key_line(const char *data, size_t len, const char *key, unsigned line)
{
    yaml_document_t doc;
    unsigned found = line;

    if (!load_document(data, len, &doc))
        return line;
    for (yaml_node_t *n = doc.nodes.start; n < doc.nodes.top; n++) {
        if (n->type != YAML_MAPPING_NODE || n->start_mark.line + 1 < line)
            continue;
        for (yaml_node_pair_t *p = n->data.mapping.pairs.start; p < n->data.mapping.pairs.top; p++) {
            yaml_node_t *k = yaml_document_get_node(&doc, p->key);
            if (k && k->type == YAML_SCALAR_NODE && !strcmp((char *)k->data.scalar.value, key)) {
                found = (unsigned)k->start_mark.line + 1;
                goto out;
            }
        }
    }
out:
    yaml_document_delete(&doc);
    return found;
}

unsigned text_line(const struct srv_text *t, const char *key)
{
    cleanup_free char *data = NULL;
    size_t len;
    yaml_document_t doc;
    unsigned line;

    if (!t->path || read_file(t->path, &data, &len) < 0 || !load_document(data, len, &doc))
        return 0;
    line = find_line(&doc, key);
    yaml_document_delete(&doc);
    return line;
}

static int check_duplicates(const char *path, const char *data, size_t len, char *err, size_t err_size)
{
    yaml_document_t doc;
    yaml_node_t *k;

    if (!load_document(data, len, &doc))
        return 0; /* a syntax error: libcyaml will tell */
    k = duplicate_key(&doc);
    if (k)
        snprintf(err, err_size, "%s: line %zu: the key \"%.60s\" is there twice", path, k->start_mark.line + 1,
                 (char *)k->data.scalar.value);
    yaml_document_delete(&doc);
    return k ? -EINVAL : 0;
}

int text_load(struct srv_text *t, const char *path, char *err, size_t err_size)
{
    struct report rep = {{0}, {0}};
    char what[400];
    cyaml_config_t cfg = cyaml_setup;
    cleanup_free char *data = NULL;
    struct text_values *v = NULL;
    unsigned line = 0;
    size_t len = 0;
    cyaml_err_t e;
    char *p;
    int r = read_file(path, &data, &len);

    if (r < 0) {
        snprintf(err, err_size, "%s: cannot read the configuration: %s", path, strerror(-r));
        return r;
    }
    r = check_duplicates(path, data, len, err, err_size);
    if (r < 0)
        return r;
    cfg.log_fn = note;
    cfg.log_ctx = &rep;
    e = cyaml_load_data((uint8_t *)data, len, &cfg, &top_schema, (cyaml_data_t **)&v, NULL);
    if (e != CYAML_OK) {
        if ((p = strstr(rep.where, "(line: ")) != NULL) {
            line = (unsigned)strtoul(p + 7, NULL, 10);
            p[0] = 0;
            trim(rep.where);
        }
        if (!strncmp(rep.what, "Unexpected key: ", 16))
            line = unknown_key_line(data, len, rep.what + 16, line);
        plain_words(&rep, cyaml_strerror(e), what, sizeof what);
        snprintf(err, err_size, "%s: line %u: %s", path, line ? line : 1, what);
        return -EINVAL;
    }
    p = strdup(path);
    if (!p || !v) {
        free(p);
        text_free_values(v);
        snprintf(err, err_size, "%s: %s", path, v ? "out of memory" : "the file is empty");
        return v ? -ENOMEM : -EINVAL;
    }
    text_free_values(t->v);
    free(t->path);
    t->v = v;
    t->path = p;
    return 0;
}
