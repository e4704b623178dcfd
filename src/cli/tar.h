/* Tar archives, through libarchive: what the commands and the tests of the reader share. */
#ifndef CLI_TAR_H
#define CLI_TAR_H

#include "side.h"

struct archive;

/* Tells the archive's error, after its name. Returns an exit code. */
int tar_fail(struct archive *a, const char *name);
/* For tar, plain or compressed; NULL: no memory. archive_read_free ends it. */
struct archive *tar_reader(void);
/*
 * Puts all of an open archive below root, over what is there. An entry that cannot be put (its name leads out of root,
 * a link stands in its way) is told and left out. Returns an exit code.
 */
int tar_import(struct side *to, const char *root, struct archive *a, const char *name, struct progress *progress);

#endif
