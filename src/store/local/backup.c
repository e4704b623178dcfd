/* A consistent copy of a store in use. */
#include "parts.h"

#include <errno.h>

int local_backup(struct pst_store *st, const char *dir)
{
    (void)st, (void)dir;
    return -EOPNOTSUPP;
}
