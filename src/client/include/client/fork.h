/* A child of fork(2) has its parent's handles in memory, but none of the threads behind them. */
#ifndef CLIENT_FORK_H
#define CLIENT_FORK_H

#include <stdbool.h>
#include <stdint.h>

/* From the first call on, forks are noticed. The generation is kept with what the process makes. */
uint64_t fork_generation(void);
/* Was it made by this process, not by its parent? */
bool fork_is_mine(uint64_t generation);

#endif
