/* The thread's last error, and what every part of the API converts. */
#include "api.h"

#include "base/err.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>

static _Thread_local char last_error[512];

const char *pst_version(void)
{
    return PENSTOCK_VERSION;
}

const char *pst_last_error(void)
{
    return last_error;
}

const char *pst_error_name(int error)
{
    return err_name(error);
}

/* Causes that the errno's text alone does not explain to a user. */
static const char *hint(int err)
{
    switch (-err) {
    case ECHILD:
        return " (the handle belongs to the parent process)";
    case ETIMEDOUT:
        return " (no answer in time, from the server or from one behind it; --timeout, timeout_ms)";
    case ESTALE:
        return " (the object is gone from the server)";
    default:
        return "";
    }
}

int64_t api_result(const char *call, const char *object, int64_t r)
{
    if (r < 0)
        snprintf(last_error, sizeof last_error, "%s%s%.300s: %s%s", call, object ? " " : "", object ? object : "",
                 err_text((int)r), hint((int)r));
    return r;
}

int api_fail(int err, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(last_error, sizeof last_error, fmt, ap);
    va_end(ap);
    return err;
}
