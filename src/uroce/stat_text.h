/* What `uroce stat` prints of a device and its queue pairs: for people, or as JSON. */
#ifndef UROCE_STAT_TEXT_H
#define UROCE_STAT_TEXT_H

#include "roce/device_stat.h"

#include <stdbool.h>
#include <sys/types.h>

struct stat_out {
    bool json;
    bool any; /* something was printed: JSON needs a comma */
};

/* Of what another program wrote: nothing moves a terminal's cursor or ends a JSON string, and it ends within size. */
void stat_printable(char *text, size_t size);
void stat_out_begin(struct stat_out *o);
void stat_out_device(struct stat_out *o, pid_t pid, const struct stat_device *d);
void stat_out_pair(struct stat_out *o, const struct stat_pair *p, bool first);
/* complete: all queue pairs were told. */
void stat_out_device_end(struct stat_out *o, bool complete);
void stat_out_end(struct stat_out *o);

#endif
