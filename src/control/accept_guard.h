#ifndef CONTROL_ACCEPT_GUARD_H
#define CONTROL_ACCEPT_GUARD_H

#include <stdint.h>

/* From now on connections do not take the last quarter (256 at most) of the process's descriptors. */
void accept_guard_start(void);
/* Connections closed for that, so far. */
uint64_t accept_guard_dropped(void);

#endif
