#include "base/own_file.h"

#include <dlfcn.h>
#include <link.h>
#include <stdint.h>
#include <stdlib.h>

/* Of a program the loader only knows what its caller called it, maybe another file. */
bool own_file(char ret[PATH_MAX])
{
    struct link_map *map;
    Dl_info me;

    if (!dladdr1((void *)(uintptr_t)own_file, &me, (void **)&map, RTLD_DL_LINKMAP))
        return false;
    return realpath(*map->l_name ? map->l_name : "/proc/self/exe", ret);
}
