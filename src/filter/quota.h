/* What other files of this folder need of the quota. */
#ifndef FILTER_QUOTA_H
#define FILTER_QUOTA_H

#include "filter/filter.h"

extern const struct filter_type filter_type_quota;

struct amount {
    uint64_t bytes, objects;
};
/* What all containers of a store take. 0 or -errno. */
int amount_in_use(struct pst_store *st, struct amount *ret);

#endif
