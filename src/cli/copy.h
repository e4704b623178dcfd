/* Copies trees between sides: with modes, times, owners, links, extended attributes; in parallel; resumable. */
#ifndef CLI_COPY_H
#define CLI_COPY_H

#include "side.h"

struct copy_opts {
    bool recursive, checksum, no_attrs;
    bool verbose; /* names on standard error */
    uint64_t jobs;
    struct progress *progress;
};

struct copy_result {
    uint64_t files, bytes, skipped, failed;
    int first_error;
};

/*
 * Copies `from` (of any type) to the name `to`. A file whose size and modification time agree is left alone (checksum:
 * whose contents agree). Prints an error for each thing that cannot be copied, and goes on. 0 or the first error.
 */
int copy_run(struct side *src, const char *from, struct side *dst, const char *to, const struct copy_opts *o,
             struct copy_result *ret);
/* Mode, owner, times and extended attributes of one thing. */
int copy_attrs(struct side *src, const char *from, const struct stat *st, struct side *dst, const char *to);

#endif
