/* The files of a sysfs view, before they are written: see view.h. */
#ifndef UROCE_VIEW_FILES_H
#define UROCE_VIEW_FILES_H

#include "uroce/uroce.h"

#include <stdbool.h>

struct view_file {
    char *path; /* below the view's directory */
    char *text; /* contents, or where the link leads to */
    bool link;
};
struct view_files {
    struct view_file *at; /* owned, with its strings */
    size_t n, room;
    int err; /* 0 or -ENOMEM: then the rest is missing */
};

void view_files_of(const struct uroce_device_info *devices, int n, struct view_files *ret);
void view_files_done(struct view_files *f);
/* Over all paths and contents. */
uint64_t view_files_sum(const struct view_files *f);

#endif
