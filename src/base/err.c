#include "base/err.h"

#include <string.h>

const char *err_name(int err)
{
    const char *n = strerrorname_np(err < 0 ? -err : err);
    return n ? n : "E?";
}

const char *err_text(int err)
{
    const char *t = strerrordesc_np(err < 0 ? -err : err);
    return t ? t : "unknown error";
}
