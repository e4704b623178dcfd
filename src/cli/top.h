/* What `penstock top` shows, made of two looks at a server. */
#ifndef CLI_TOP_H
#define CLI_TOP_H

#include "cli.h"

/* A look: status_json and metrics_json, and when (now_ns). Owns both. */
struct top_look {
    json_t *status, *metrics;
    uint64_t at_ns;
};
void top_look_free(struct top_look *l);
/* What went on between them: rates, percentiles, tenants, connections, filters, caches. A new reference. */
json_t *top_view(const struct top_look *before, const struct top_look *after);
/* The view as lines of text; what is more than `rows` of them or wider than `cols` is left out. 0: all. */
void top_print(FILE *f, const json_t *view, unsigned rows, unsigned cols);

#endif
