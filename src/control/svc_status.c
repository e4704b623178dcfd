/* StatusService: facts, connections, metrics, scrub. */
#include "service_priv.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define ITEMS_MAX 4096u /* facts, connections or metrics in a reply */

/* Items gathered by callbacks: pointers in the arena, the array grows by doubling. */
struct gather {
    struct ctl_req *q;
    void **items;
    size_t n, cap, bytes;
    bool own_only; /* connections: of the asking session */
    bool all;      /* and of all tenants */
    int err;
};

static void *gather_add(struct gather *g, size_t size, size_t text)
{
    if (g->err || g->n == ITEMS_MAX || g->bytes + text > CTL_REPLY_MAX)
        return NULL;
    if (g->n == g->cap) {
        size_t cap = g->cap ? 2 * g->cap : 32;
        void **more = arena_alloc(&g->q->a, cap * sizeof *more);
        if (!more) {
            g->err = -ENOMEM;
            return NULL;
        }
        if (g->n)
            memcpy(more, g->items, g->n * sizeof *more);
        g->items = more;
        g->cap = cap;
    }
    g->items[g->n] = arena_alloc(&g->q->a, size);
    if (!g->items[g->n]) {
        g->err = -ENOMEM;
        return NULL;
    }
    g->bytes += text + 64;
    return g->items[g->n++];
}

static char *text_of(struct gather *g, const char *s)
{
    char *c = arena_copy(&g->q->a, s ? s : "", s ? strlen(s) : 0);
    if (!c)
        g->err = -ENOMEM;
    return c ? c : (char *)"";
}

static void add_fact(void *arg, const char *key, const char *value)
{
    struct gather *g = arg;
    PB(Fact) *f = gather_add(g, sizeof *f, strlen(key) + strlen(value));

    if (!f)
        return;
    penstock__v1__fact__init(f);
    f->key = text_of(g, key);
    f->value = text_of(g, value);
}

/* Of an agent's backend: not to be taken for the agent's own. */
static void add_backend_fact(void *arg, const char *key, const char *value)
{
    char name[80];

    snprintf(name, sizeof name, strcmp(key, "filter") ? "backend.%s" : "%s", key);
    add_fact(arg, name, value);
}

static bool several(const struct ctl_server *s)
{
    return atomic_load(&s->ntenants) > 1;
}

/* Whose connection it is, from the session table. */
struct whose {
    const uint8_t *id;
    char client[33], purpose[16];
};

static void look_up(const struct sess *s, void *arg)
{
    struct whose *w = arg;
    if (memcmp(sess_id(s), w->id, SESS_ID_BYTES))
        return;
    for (int i = 0; i < 16; i++)
        sprintf(w->client + 2 * i, "%02x", sess_ident(s)->client_id[i]);
    snprintf(w->purpose, sizeof w->purpose, "%s", sess_ident(s)->purpose);
}

static void add_connection(void *arg, const struct ctl_connection *c)
{
    struct gather *g = arg;
    struct whose w = {.id = c->session};
    PB(Connection) * m;

    if (g->own_only && memcmp(c->session, sess_id(g->q->sess), SESS_ID_BYTES))
        return;
    if (!g->all && c->tenant != sess_ident(g->q->sess)->tenant)
        return;
    m = gather_add(g, sizeof *m, 200);
    if (!m)
        return;
    sess_each(g->q->s->sess, look_up, &w);
    penstock__v1__connection__init(m);
    m->client = text_of(g, w.client);
    m->purpose = text_of(g, w.purpose);
    m->peer = text_of(g, c->peer);
    m->provider = text_of(g, c->provider);
    m->device = text_of(g, c->device);
    m->rdma = c->rdma;
    m->shard = c->shard;
    m->requests = c->requests;
    m->bytes_in = c->bytes_in;
    m->bytes_out = c->bytes_out;
    if (several(g->q->s))
        m->tenant = text_of(g, g->q->s->tenants[c->tenant].in.name);
    m->bytes_exported = c->bytes_exported;
    m->bytes_third = c->bytes_third;
    m->placement = text_of(g, c->placement);
}

static int do_status(struct ctl_req *q, const void *in_, void *out_)
{
    const PB(StatusRequest) *in = in_;
    PB(StatusReply) *out = out_;
    struct ctl_server *s = q->s;
    struct gather facts = {.q = q}, conns = {.q = q};
    int r = ctl_need_cred(q, in->session, NULL, NULL);
    uint32_t tenant;

    if (r)
        return r;
    tenant = sess_ident(q->sess)->tenant;
    if (tenant)
        add_fact(&facts, "tenant", q->tenant->in.name);
    pst_store_describe(q->tenant->in.st, s->far_store ? add_backend_fact : add_fact, &facts);
    if (s->hooks.facts)
        s->hooks.facts(s->hooks.user, tenant, add_fact, &facts);
    conns.own_only = !ctl_is_admin(q);
    conns.all = ctl_is_operator(q);
    if (s->hooks.connections)
        s->hooks.connections(s->hooks.user, add_connection, &conns);
    out->version = (char *)PENSTOCK_VERSION;
    out->role = s->role;
    out->uptime_ms = (now_ns() - s->started_ns) / NSEC_PER_MSEC;
    out->facts = (PB(Fact) **)facts.items;
    out->n_facts = facts.n;
    out->connections = (PB(Connection) **)conns.items;
    out->n_connections = conns.n;
    out->sessions = ctl_is_operator(q) ? sess_count(s->sess) : sess_count_of(s->sess, tenant);
    return facts.err ? facts.err : conns.err;
}

/* ---- metrics ---- */

static void emit_refused(struct ctl_server *s, uint32_t tenant, pst_stat_fn fn, void *arg)
{
    for (enum refusal r = 0; r < REFUSALS; r++) {
        char labels[64];
        snprintf(labels, sizeof labels, "reason=\"%s\"", refusal_name(r));
        fn(arg, "penstock_refused_total", labels, "requests refused, by reason", true,
           (double)(tenant == CTL_ALL ? sess_refused(s->sess, r) : sess_refused_of(s->sess, tenant, r)));
    }
}

/* What there is of each tenant. */
static void emit_tenant(struct ctl_server *s, uint32_t tenant, pst_stat_fn fn, void *arg)
{
    fn(arg, "penstock_sessions", "", "sessions that are open", false, sess_count_of(s->sess, tenant));
    emit_refused(s, tenant, fn, arg);
    pst_store_stats(s->tenants[tenant].in.st, fn, arg);
    if (s->hooks.metrics)
        s->hooks.metrics(s->hooks.user, tenant, fn, arg);
}

/* A tenant's figure among the server's: under another name, so that sums stay right. */
struct labelled {
    pst_stat_fn fn;
    void *arg;
    const char *tenant;
};

static void add_label(void *arg, const char *name, const char *labels, const char *help, bool counter, double value)
{
    static const char ours[] = "penstock_", tenants[] = "penstock_tenant_";
    const struct labelled *l = arg;
    char n[120], k[200];
    bool named = !strncmp(name, tenants, sizeof tenants - 1);

    /* Latencies have a hundred series: they are told of the whole server, and to the tenant itself. */
    if (strncmp(name, ours, sizeof ours - 1) || strstr(name, "_seconds"))
        return;
    if (!strncmp(labels, "tenant=", 7)) /* has its label, and was told with the server's */
        return;
    snprintf(n, sizeof n, "%s%s", tenants, name + (named ? sizeof tenants : sizeof ours) - 1);
    snprintf(k, sizeof k, "tenant=\"%s\"%s%s", l->tenant, *labels ? "," : "", labels);
    l->fn(l->arg, n, k, help, counter, value);
}

void ctl_metrics(struct ctl_server *s, uint32_t tenant, pst_stat_fn fn, void *arg)
{
    if (tenant != CTL_ALL) {
        emit_tenant(s, tenant, fn, arg);
        return;
    }
    fn(arg, "penstock_sessions", "", "sessions that are open", false, sess_count(s->sess));
    fn(arg, "penstock_control_calls", "", "control calls under way", false, rpc_server_calls(s->rpc));
    fn(arg, "penstock_dropped_connections_total", "", "connections closed for want of descriptors (ulimit -n)", true,
       (double)rpc_server_dropped());
    fn(arg, "penstock_control_requests_total", "", "control requests handled", true, (double)atomic_load(&s->requests));
    fn(arg, "penstock_control_errors_total", "", "control requests that ended with an error", true,
       (double)atomic_load(&s->failed));
    emit_refused(s, CTL_ALL, fn, arg);
    if (s->audit) {
        struct audit_counts c = audit_counts(s->audit);
        fn(arg, "penstock_audit_lines_total", "", "lines written to the audit log", true, (double)c.lines);
        fn(arg, "penstock_audit_lost_total", "", "lines lost: the log could not be written", true, (double)c.lost);
    }
    pst_store_stats(s->tenants[0].in.st, fn, arg);
    if (s->hooks.metrics)
        s->hooks.metrics(s->hooks.user, CTL_ALL, fn, arg);
    for (uint32_t i = 1; i < SESS_TENANTS_MAX; i++) {
        struct ctl_ten *t = ctl_ten_get(s, i);
        if (t)
            emit_tenant(s, i, add_label, &(struct labelled){fn, arg, t->in.name});
        ctl_ten_put(t);
    }
}

static void add_metric(void *arg, const char *name, const char *labels, const char *help, bool counter, double value)
{
    struct gather *g = arg;
    PB(Metric) *m = gather_add(g, sizeof *m, strlen(name) + strlen(labels) + strlen(help));

    if (!m)
        return;
    penstock__v1__metric__init(m);
    m->name = text_of(g, name);
    m->labels = text_of(g, labels);
    m->help = text_of(g, help);
    m->counter = counter;
    m->value = value;
}

static int do_metrics(struct ctl_req *q, const void *in_, void *out_)
{
    const PB(MetricsRequest) *in = in_;
    PB(MetricsReply) *out = out_;
    struct gather g = {.q = q};
    int r = ctl_need_cred(q, in->session, NULL, NULL);

    if (r)
        return r;
    ctl_metrics(q->s,
                ctl_is_operator(q) || (q->tenant == q->s->tenants && !several(q->s)) ? CTL_ALL
                                                                                     : sess_ident(q->sess)->tenant,
                add_metric, &g);
    out->metrics = (PB(Metric) **)g.items;
    out->n_metrics = g.n;
    return g.err;
}

/* As long as the data is long: one at a time, so that the other threads go on serving. */
static int do_backup(struct ctl_req *q, const void *in_, void *out_)
{
    const PB(BackupRequest) *in = in_;
    struct ctl_server *s = q->s;
    int r;

    (void)out_;
    ctl_act(q, "backup", "%.200s", in->directory);
    r = ctl_need_cred(q, in->session, NULL, NULL);
    if (!r)
        r = ctl_need_operator(q);
    if (!r && in->directory[0] != '/')
        r = ctl_fail(q, -EINVAL, "the directory must be an absolute path");
    if (!r && s->far_store)
        r = ctl_fail(q, -EOPNOTSUPP, "an agent has no store of its own: make the backup at the server behind it");
    if (r)
        return r;
    if (atomic_exchange(&s->backup_running, true))
        return ctl_fail(q, -EBUSY, "a backup is being made");
    r = pst_store_backup(q->tenant->in.st, in->directory);
    atomic_store(&s->backup_running, false);
    return r;
}

/* ---- tenants ---- */

static int add_pool(const struct pst_pool_info *p, void *arg)
{
    PB(Tenant) *t = arg;
    t->used_bytes += p->used_bytes;
    t->objects += p->objects;
    return 0;
}

static int add_tenant(struct ctl_req *q, struct ctl_ten *of, PB(Tenant) * t)
{
    struct ctl_server *s = q->s;
    struct gather facts = {.q = q};
    uint32_t i = ctl_ten_number(s, of);
    int r;

    penstock__v1__tenant__init(t);
    t->name = text_of(&facts, of->in.name);
    t->sessions = sess_count_of(s->sess, i);
    if (s->hooks.tenant)
        s->hooks.tenant(s->hooks.user, i, add_fact, &facts);
    if (pst_store_away(of->in.st)) { /* whoever looks, looks because of that */
        add_fact(&facts, "used", "not known: the server behind is away");
        r = 0;
    } else {
        r = pst_pool_list(of->in.st, &(struct pst_ctx){0}, "", add_pool, t);
    }
    t->facts = (PB(Fact) **)facts.items;
    t->n_facts = facts.n;
    return r ? r : facts.err;
}

static int do_tenants(struct ctl_req *q, const void *in_, void *out_)
{
    const PB(TenantsRequest) *in = in_;
    PB(TenantsReply) *out = out_;
    struct ctl_server *s = q->s;
    PB(Tenant) * one;
    int r = ctl_need_cred(q, in->session, NULL, NULL);

    if (!r && q->tenant == s->tenants) /* others see themselves */
        r = ctl_need_operator(q);
    if (r)
        return r;
    out->tenants = arena_alloc(&q->a, SESS_TENANTS_MAX * sizeof *out->tenants);
    if (!out->tenants)
        return -ENOMEM;
    for (uint32_t i = 0; !r && i < SESS_TENANTS_MAX; i++) {
        struct ctl_ten *t = q->tenant == s->tenants || q->tenant == &s->tenants[i] ? ctl_ten_get(s, i) : NULL;
        if (t && (!*in->name || !strcmp(in->name, t->in.name))) {
            one = arena_alloc(&q->a, sizeof *one);
            r = one ? add_tenant(q, t, one) : -ENOMEM;
            if (!r)
                out->tenants[out->n_tenants++] = one;
        }
        ctl_ten_put(t);
    }
    return !r && !out->n_tenants ? -ENOENT : r;
}

#define SERVICE "/penstock.v1.StatusService/"
const struct ctl_method ctl_status_methods[] = {
    {SERVICE "Status", &penstock__v1__status_request__descriptor, &penstock__v1__status_reply__descriptor, do_status},
    {SERVICE "Metrics", &penstock__v1__metrics_request__descriptor, &penstock__v1__metrics_reply__descriptor,
     do_metrics},
    {SERVICE "Tenants", &penstock__v1__tenants_request__descriptor, &penstock__v1__tenants_reply__descriptor,
     do_tenants},
    {SERVICE "Backup", &penstock__v1__backup_request__descriptor, &penstock__v1__backup_reply__descriptor, do_backup},
};
const size_t ctl_status_nmethods = ARRAY_SIZE(ctl_status_methods);

/* ---- scrub: one at a time, in a thread of its own: it takes as long as the data is long ---- */

struct scrub {
    struct ctl_server *s;
    struct pst_store *st;
    struct rpc_call *call; /* counted */
};

static int send_event(struct rpc_call *c, const PB(ScrubEvent) * e)
{
    uint8_t buf[1024]; /* labels have at most 127 bytes */
    return rpc_send_wait(c, buf, penstock__v1__scrub_event__pack(e, buf));
}

static void on_damage(void *user, const char *pool, const char *cont, uint64_t ino, uint64_t offset, uint64_t length)
{
    struct scrub *k = user;
    char p[PST_LABEL_MAX + 1], n[PST_LABEL_MAX + 1];
    PB(ScrubEvent) e = PENSTOCK__V1__SCRUB_EVENT__INIT;

    snprintf(p, sizeof p, "%s", pool ? pool : "");
    snprintf(n, sizeof n, "%s", cont ? cont : "");
    e.pool = p;
    e.container = n;
    e.ino = ino;
    e.offset = offset;
    e.length = length;
    if (send_event(k->call, &e))
        k->s->scrub_cancel = true; /* nobody listens any more */
}

static void *scrub_thread(void *arg)
{
    struct scrub *k = arg;
    int64_t n = pst_store_scrub(k->st, on_damage, k, &k->s->scrub_cancel);
    PB(ScrubEvent) e = PENSTOCK__V1__SCRUB_EVENT__INIT;

    e.done = true;
    e.damaged = n < 0 ? 0 : (uint64_t)n;
    if (n >= 0 && !k->s->scrub_cancel)
        send_event(k->call, &e);
    rpc_finish(k->call, n < 0 ? (int)n : k->s->scrub_cancel ? -ECANCELED : 0, NULL);
    rpc_call_unref(k->call);
    pthread_mutex_lock(&k->s->mu);
    k->s->scrub_running = false;
    pthread_mutex_unlock(&k->s->mu);
    free(k);
    return NULL;
}

void ctl_scrub_join(struct ctl_server *s)
{
    bool begun;

    pthread_mutex_lock(&s->mu);
    begun = s->scrub_begun;
    s->scrub_begun = false;
    pthread_mutex_unlock(&s->mu);
    if (begun)
        pthread_join(s->scrub, NULL);
}

/* Needs s->mu. */
static int begin(struct ctl_server *s, struct pst_store *st, struct rpc_call *c)
{
    struct scrub *k;
    int r;

    if (s->scrub_running)
        return -EBUSY;
    if (s->scrub_begun) /* the last one is over: its thread only has to return */
        pthread_join(s->scrub, NULL);
    s->scrub_begun = false;
    k = calloc(1, sizeof *k);
    if (!k)
        return -ENOMEM;
    k->s = s;
    k->st = st;
    k->call = rpc_call_ref(c);
    s->scrub_cancel = atomic_load(&s->stopping);
    r = -pthread_create(&s->scrub, NULL, scrub_thread, k);
    if (r) {
        rpc_call_unref(c);
        free(k);
        return r;
    }
    s->scrub_begun = s->scrub_running = true;
    return 0;
}

void ctl_scrub(struct rpc_call *c, const void *msg, size_t len, void *user)
{
    struct ctl_server *s = user;
    struct ctl_req q;
    PB(ScrubRequest) * in;
    int r;

    ctl_req_init(&q, s, c);
    atomic_fetch_add(&s->requests, 1);
    in = penstock__v1__scrub_request__unpack(&q.a.pb, len, msg);
    r = in ? ctl_need_cred(&q, in->session, NULL, NULL) : -EBADMSG;
    if (!r)
        r = ctl_need_operator(&q);
    if (!r && s->far_store)
        r = ctl_fail(&q, -EOPNOTSUPP, "an agent has no store of its own: scrub the server behind it");
    if (!r) {
        scoped_lock(&s->mu);
        r = begin(s, q.tenant->in.st, c);
        if (r == -EBUSY)
            ctl_fail(&q, r, "a scrub is running");
    }
    ctl_audit(&q, "scrub", NULL, r);
    if (r) {
        atomic_fetch_add(&s->failed, 1);
        rpc_finish(c, r, *q.text ? q.text : NULL);
    }
    ctl_req_done(&q);
}
