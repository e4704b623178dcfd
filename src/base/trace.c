#include "base/trace.h"

#include "base/err.h"
#include "base/log.h"
#include "base/parse.h"
#include "base/rng.h"
#include "base/util.h"

#include <errno.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>

#define LINES_MAX 50u /* of slow and failed requests, in each of */
#define LINES_NS  (10 * NSEC_PER_SEC)

static _Thread_local uint64_t current;
static _Atomic uint64_t last_id, slow_ns;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_mutex_t lines_lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
    uint64_t since_ns, told, left_out;
} lines; /* lines_lock */

static void start(void)
{
    const char *env = getenv("PENSTOCK_LOG_SLOW");
    uint64_t seed, ms = 1000;

    rng_secret(&seed, sizeof seed);
    atomic_store(&last_id, seed);
    if (env)
        parse_uint(env, &ms); /* what is no number leaves the default */
    atomic_store(&slow_ns, min_u64(ms, UINT32_MAX) * NSEC_PER_MSEC);
}

uint64_t trace_new(void)
{
    uint64_t id;

    pthread_once(&once, start);
    do
        id = (atomic_fetch_add_explicit(&last_id, 1, memory_order_relaxed) + 1) & TRACE_MAX;
    while (!id);
    return id;
}

uint64_t trace_current(void)
{
    return current;
}

uint64_t trace_enter(uint64_t id)
{
    uint64_t was = current;

    current = id & TRACE_MAX;
    return was;
}

uint64_t trace_for(uint64_t id)
{
    return id & TRACE_MAX ? id & TRACE_MAX : current ? current : trace_new();
}

void trace_set_slow(uint64_t ns)
{
    pthread_once(&once, start);
    atomic_store(&slow_ns, ns);
}

static bool is_slow(uint64_t ns)
{
    uint64_t limit;

    pthread_once(&once, start);
    limit = atomic_load_explicit(&slow_ns, memory_order_relaxed);
    return limit && ns >= limit;
}

static bool has_failed(int status)
{
    switch (-status) {
    case EIO:
    case ETIMEDOUT:
    case ENOMEM:
    case EROFS:
    case ENOTCONN:
    case ECONNRESET:
    case ECONNREFUSED:
    case EHOSTUNREACH:
        return true;
    default:
        return false;
    }
}

bool trace_tells(int status, uint64_t ns)
{
    return has_failed(status) || is_slow(ns) || log_enabled(LOG_LVL_DEBUG);
}

/* False: too many. ret: how many were left out before this one. */
static bool take_line(uint64_t *ret)
{
    uint64_t now = now_ns();

    scoped_lock(&lines_lock);
    *ret = 0;
    if (now - lines.since_ns >= LINES_NS) {
        lines.since_ns = now;
        lines.told = 0;
        *ret = lines.left_out;
        lines.left_out = 0;
    }
    if (lines.told == LINES_MAX) {
        lines.left_out++;
        return false;
    }
    lines.told++;
    return true;
}

void trace_end(const char *component, bool warn, uint64_t id, int status, uint64_t ns, const char *fmt, ...)
{
    enum log_level level = has_failed(status) && warn          ? LOG_LVL_WARN
                           : has_failed(status) || is_slow(ns) ? LOG_LVL_INFO
                                                               : LOG_LVL_DEBUG;
    bool each = log_enabled(LOG_LVL_DEBUG);
    uint64_t was, left_out = 0;
    char text[400];
    va_list ap;

    if (!log_enabled(level) || (!each && !take_line(&left_out)))
        return;
    if (left_out)
        log_write(level, component, "%llu slow or failed requests before were not told", (unsigned long long)left_out);
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    was = trace_enter(id);
    log_write(level, component, "%s%s: %s, %llu.%03llu ms", is_slow(ns) ? "slow " : "", text,
              status < 0 ? err_name(status) : "done", (unsigned long long)(ns / NSEC_PER_MSEC),
              (unsigned long long)(ns / 1000 % 1000));
    trace_enter(was);
}
