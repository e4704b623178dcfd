#ifndef CONTROL_ACCEPT_GUARD_H
#define CONTROL_ACCEPT_GUARD_H

#include <stdint.h>

/* From now on connections do not take the last quarter (256 at most) of the process's descriptors. */
void accept_guard_start(void);
/* This listener's connections may take a few of those: whoever watches a busy server must get in. */
void accept_guard_prefer(int listener);
/* Connections closed for that, so far. */
uint64_t accept_guard_dropped(void);

#endif
