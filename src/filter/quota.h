/* What filter.c needs to know of the quota. */
#ifndef FILTER_QUOTA_H
#define FILTER_QUOTA_H

#include "filter/filter.h"

extern const struct filter_type filter_type_quota;

#endif
