#include "base/log.h"

#include "base/trace.h"
#include "base/util.h"

#include <errno.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

static const char *const level_names[] = {"error", "warn", "info", "debug"};

static atomic_int current_level = -1;
static pthread_mutex_t sink_lock = PTHREAD_MUTEX_INITIALIZER;
static void (*sink_fn)(enum log_level, const char *, void *);
static void *sink_user;
static _Thread_local struct {
    const char *component; /* NULL: none */
    char *line;
    size_t size;
} divert;

int log_level_parse(const char *name, enum log_level *ret_level)
{
    for (size_t i = 0; i < ARRAY_SIZE(level_names); i++)
        if (!strcmp(name, level_names[i])) {
            *ret_level = (enum log_level)i;
            return 0;
        }
    return -EINVAL;
}

void log_set_level(enum log_level level)
{
    atomic_store(&current_level, (int)level);
}

bool log_enabled(enum log_level level)
{
    int cur = atomic_load_explicit(&current_level, memory_order_relaxed);
    if (cur < 0) {
        const char *env = getenv("PENSTOCK_LOG");
        enum log_level l = LOG_LVL_WARN;
        if (env)
            log_level_parse(env, &l);
        log_set_level(l);
        cur = (int)l;
    }
    return (int)level <= cur;
}

void log_set_sink(void (*sink)(enum log_level, const char *, void *), void *user)
{
    scoped_lock(&sink_lock);
    sink_fn = sink;
    sink_user = user;
}

void log_divert(const char *component, char *ret, size_t size)
{
    divert.component = component;
    divert.line = ret;
    divert.size = size;
    if (size)
        ret[0] = 0;
}

void log_write(enum log_level level, const char *component, const char *fmt, ...)
{
    char line[1024];
    va_list ap;
    int n = snprintf(line, sizeof line, "%s: %s: ", component, level_names[level]);

    if (trace_current())
        n += snprintf(line + n, sizeof line - (size_t)n, "request %012llx: ", (unsigned long long)trace_current());
    va_start(ap, fmt);
    vsnprintf(line + n, sizeof line - (size_t)n, fmt, ap);
    va_end(ap);
    if (divert.component && !strcmp(divert.component, component)) {
        if (!divert.line[0])
            snprintf(divert.line, divert.size, "%s", line + n);
        return;
    }
    scoped_lock(&sink_lock);
    if (sink_fn)
        sink_fn(level, line, sink_user);
    else
        fprintf(stderr, "%s\n", line);
}
