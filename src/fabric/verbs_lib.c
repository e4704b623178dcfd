#include "fab_int.h"

#include "base/own_file.h"

#include <dirent.h>
#include <dlfcn.h>
#include <libgen.h>

/*
 * Which libibverbs a process has is settled with the first one that is loaded: later ones of that name are taken for
 * it. libfabric names its libraries without a path, so the one that is to be uroce's has to be there before libfabric
 * is.
 */

#define IBVERBS "libibverbs.so.1"
#define RDMACM  "librdmacm.so.1"

/* uroce's own libraries bring its native interface along. */
static bool is_uroce(void *handle)
{
    return handle && dlsym(handle, "uroce_open");
}

/* The one that the process has already: NULL: none. */
static const char *loaded(void)
{
    void *h = dlopen(IBVERBS, RTLD_NOW | RTLD_NOLOAD);
    const char *name = !h ? NULL : is_uroce(h) ? "uroce" : "system";

    if (h)
        dlclose(h);
    return name;
}

static bool usable(char *dir, size_t size, const char *base, const char *below)
{
    char path[PATH_MAX];
    int n = snprintf(dir, size, "%s%s", base, below);

    if (n < 0 || (size_t)n >= size)
        return false;
    n = snprintf(path, sizeof path, "%s/" IBVERBS, dir);
    return n > 0 && (size_t)n < sizeof path && access(path, R_OK) == 0;
}

/* NULL: nobody has named one. */
static const char *named_dir(void)
{
    const char *env = secure_getenv("UROCE_LIBDIR");

    return env && *env ? env : NULL;
}

/* UROCE_LIBDIR, else as `uroce run`: of the build tree; beside this code; where it was to be installed to. */
static bool find_dir(char *dir, size_t size)
{
    static const char *const beside[] = {"/../roce/verbs", "/" FAB_UROCE_FROM_BIN, "/uroce"};
    const char *named = named_dir();
    char own[PATH_MAX];

    if (named)
        return usable(dir, size, named, "");
    if (own_file(own)) {
        const char *here = dirname(own);
        for (size_t i = 0; i < ARRAY_SIZE(beside); i++)
            if (usable(dir, size, here, beside[i]))
                return true;
    }
    return usable(dir, size, FAB_UROCE_DIR, "");
}

static int load(const char *dir, const char *name, char *err, size_t err_size)
{
    char path[PATH_MAX + 32];

    snprintf(path, sizeof path, "%s/%s", dir, name);
    if (dlopen(path, RTLD_NOW | RTLD_GLOBAL))
        return 0;
    snprintf(err, err_size, "uroce's %s cannot be loaded: %s", name, dlerror());
    return -ENOENT;
}

bool fab_rdma_device(void)
{
    DIR *d = opendir("/sys/class/infiniband");
    const struct dirent *e;
    bool found = false;

    if (!d)
        return false;
    while (!found && (e = readdir(d)))
        found = e->d_name[0] != '.';
    closedir(d);
    return found;
}

const char *fab_verbs_name(void)
{
    const char *name = loaded();

    return name ? name : "none";
}

int fab_verbs_use_uroce(char *err, size_t err_size)
{
    const char *name = loaded();
    void *fabric = dlopen("libfabric.so.1", RTLD_NOW | RTLD_NOLOAD);
    char dir[PATH_MAX];
    int r;

    if (fabric)
        dlclose(fabric);
    if (name && !strcmp(name, "uroce"))
        return 0;
    if (name || fabric) {
        snprintf(err, err_size,
                 "this process has loaded the system's verbs already (%s), and one process has one verbs library: "
                 "start it with `uroce run`, or connect with provider = uroce first",
                 fabric ? "with libfabric" : IBVERBS);
        return -EBUSY;
    }
    if (!find_dir(dir, sizeof dir)) {
        snprintf(err, err_size,
                 "uroce's " IBVERBS " was not found in %s: install it, or name its directory in UROCE_LIBDIR",
                 named_dir() ? named_dir() : FAB_UROCE_DIR);
        return -ENOENT;
    }
    r = load(dir, IBVERBS, err, err_size);
    return r ? r : load(dir, RDMACM, err, err_size);
}

/* A function of uroce's, which stays loaded. */
static void *uroce_function(const char *name)
{
    void *h = dlopen(IBVERBS, RTLD_NOW | RTLD_NOLOAD), *f = h ? dlsym(h, name) : NULL;

    if (h)
        dlclose(h);
    return f;
}

bool fab_verbs_lend(void *addr, size_t len, int memfd)
{
    int (*lend)(void *addr, size_t len, int memfd);

    *(void **)&lend = uroce_function("uroce_mem_lend");
    return lend && lend(addr, len, memfd) == 0;
}

void fab_verbs_take_back(void *addr)
{
    void (*take_back)(void *addr);

    *(void **)&take_back = uroce_function("uroce_mem_take_back");
    if (take_back)
        take_back(addr);
}
