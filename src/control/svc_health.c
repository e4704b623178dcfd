/* grpc.health.v1: serving until the server stops. */
#include "service_priv.h"

#include "grpc/health/v1/health.pb-c.h"

#include <errno.h>
#include <string.h>

#define STATUS(x) GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__##x

typedef Grpc__Health__V1__HealthCheckResponse__ServingStatus serving;

static size_t pack(serving st, uint8_t buf[16])
{
    Grpc__Health__V1__HealthCheckResponse m = GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__INIT;
    m.status = st;
    return grpc__health__v1__health_check_response__pack(&m, buf);
}

/* Status of the service that the message asks about; "" is the server. -EBADMSG. */
static int ask(struct ctl_server *s, const void *msg, size_t len, serving *ret)
{
    Grpc__Health__V1__HealthCheckRequest *in = grpc__health__v1__health_check_request__unpack(NULL, len, msg);

    if (!in)
        return -EBADMSG;
    if (*in->service && !ctl_has_service(in->service))
        *ret = STATUS(SERVICE_UNKNOWN);
    else
        *ret = atomic_load(&s->stopping) ? STATUS(NOT_SERVING) : STATUS(SERVING);
    grpc__health__v1__health_check_request__free_unpacked(in, NULL);
    return 0;
}

void ctl_health_check(struct rpc_call *c, const void *msg, size_t len, void *user)
{
    uint8_t buf[16];
    serving st;
    int r = ask(user, msg, len, &st);

    if (!r && st == STATUS(SERVICE_UNKNOWN))
        r = -ENOENT;
    if (r)
        rpc_finish(c, r, r == -ENOENT ? "no such service" : NULL);
    else
        rpc_reply(c, buf, pack(st, buf));
}

void ctl_health_unwatch(struct rpc_call *c, void *user)
{
    struct ctl_server *s = user;
    bool found = false;

    pthread_mutex_lock(&s->mu);
    for (unsigned i = 0; i < s->nwatchers && !found; i++)
        if (s->watchers[i] == c) {
            s->watchers[i] = s->watchers[--s->nwatchers];
            found = true;
        }
    pthread_mutex_unlock(&s->mu);
    if (found)
        rpc_call_unref(c);
}

void ctl_health_watch(struct rpc_call *c, const void *msg, size_t len, void *user)
{
    struct ctl_server *s = user;
    uint8_t buf[16];
    serving st;
    int r = ask(s, msg, len, &st);

    if (!r) { /* status and entry at once: who has been told that it serves is told of its end */
        scoped_lock(&s->mu);
        if (atomic_load(&s->stopping) && st == STATUS(SERVING))
            st = STATUS(NOT_SERVING);
        r = s->nwatchers == CTL_WATCHERS ? -EAGAIN : rpc_send(c, buf, pack(st, buf));
        if (!r && !atomic_load(&s->stopping))
            s->watchers[s->nwatchers++] = rpc_call_ref(c);
    }
    if (r)
        rpc_finish(c, r, r == -EAGAIN ? "too many watchers" : NULL);
    else if (rpc_cancelled(c)) /* its notice may have come before the entry */
        ctl_health_unwatch(c, s);
}

void ctl_health_stop(struct ctl_server *s)
{
    struct rpc_call *all[CTL_WATCHERS];
    uint8_t buf[16];
    unsigned n;

    pthread_mutex_lock(&s->mu);
    n = s->nwatchers;
    memcpy(all, s->watchers, n * sizeof *all);
    s->nwatchers = 0;
    pthread_mutex_unlock(&s->mu);
    while (n) {
        rpc_send(all[--n], buf, pack(STATUS(NOT_SERVING), buf));
        rpc_call_unref(all[n]);
    }
}
