#include "fab_int.h"

#include <dlfcn.h>

static struct fab_lib lib;
static int lib_err;
static char lib_text[256];

#define GET(name) (*(void **)&lib.name = dlsym(so, "fi_" #name))

/*
 * By dlopen, not linked: a program without a data plane does not need libfabric, and which verbs library it binds to is
 * chosen before it is loaded. It stays loaded: its providers have threads and exit handlers of their own.
 */
static void load(void)
{
    void *so;

    /*
     * verbs registers all memory through a cache by default: with every remote right, also what is to be local, and
     * beyond the end of the registration. Never for us; fab_shard_open makes sure.
     */
    setenv("FI_MR_CACHE_MONITOR", "disabled", 1);
    /* The PSM libraries behind libfabric put signal handlers into every process that loads them. */
    setenv("HFI_NO_BACKTRACE", "1", 0);
    setenv("IPATH_NO_BACKTRACE", "1", 0);
    so = dlopen("libfabric.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!so) {
        snprintf(lib_text, sizeof lib_text, "libfabric cannot be loaded (%s): install the package libfabric1",
                 dlerror());
        lib_err = -ENOENT;
        return;
    }
    if (!GET(getinfo) || !GET(freeinfo) || !GET(dupinfo) || !GET(fabric) || !GET(strerror) || !GET(version)) {
        snprintf(lib_text, sizeof lib_text, "libfabric.so.1 lacks a function (%s): version 1.14 or newer is needed",
                 dlerror());
        lib_err = -ENOENT;
        return;
    }
    if (lib.version() < FAB_API) {
        snprintf(lib_text, sizeof lib_text, "libfabric is version %u.%u: 1.14 or newer is needed",
                 FI_MAJOR(lib.version()), FI_MINOR(lib.version()));
        lib_err = -ENOENT;
    }
}

int fab_lib_load(const struct fab_lib **ret, char *err, size_t err_size)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    pthread_once(&once, load);
    if (lib_err) {
        snprintf(err, err_size, "%s", lib_text);
        return lib_err;
    }
    *ret = &lib;
    return 0;
}

int fab_errno(int64_t fi_err)
{
    int e = (int)(fi_err < 0 ? -fi_err : fi_err);

    /* Numbers from 256 on are libfabric's own; below they are the system's. A cut connection cancels its operations. */
    if (e == FI_ECANCELED || e == FI_ENOTCONN || e == FI_ESHUTDOWN || e == EPIPE)
        return -ECONNRESET;
    return e > 0 && e < FI_ERRNO_OFFSET ? -e : -EIO;
}
