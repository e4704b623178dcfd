/* Where this code itself lies. */
#ifndef BASE_OWN_FILE_H
#define BASE_OWN_FILE_H

#include <limits.h>
#include <stdbool.h>

/*
 * The file that base's code was linked into, a program or a shared library, without symbolic links. Any thread. False:
 * it cannot be told (no /proc, or the file is gone).
 */
bool own_file(char ret[PATH_MAX]);

#endif
