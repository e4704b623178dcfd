/*
 * The sysfs view: a directory with the files that the kernel would show of the devices (class/infiniband,
 * class/infiniband_verbs, devices/virtual/infiniband, dev/infiniband), to which liburoce-fs.so leads a program.
 *
 * It lies in $XDG_RUNTIME_DIR/uroce, else in $TMPDIR or /tmp as uroce-UID (uroce-UID.1 if that is another's, and so
 * on), which nobody else may enter, under a name that is a sum over its contents: whoever needs the same view uses the
 * same directory, at any time. One that nobody has asked for in 30 days is removed when another is made.
 */
#ifndef UROCE_VIEW_H
#define UROCE_VIEW_H

#include "uroce/uroce.h"

/* The directory of these devices' view, made if need be. 0, or -errno and a line in err. */
int view_make(const struct uroce_device_info *devices, int n, char *ret_dir, size_t size, char *err, size_t err_size);

#endif
