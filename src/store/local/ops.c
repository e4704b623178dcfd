/* The table of the embedded engine. */
#include "local.h"

const struct pst_store_ops local_ops = {
    .name = "local",
    .close = local_close,
    .stats = local_stats,
    .describe = local_describe,
    .backup = local_backup,
};
