#include "client/fork.h"

#include "client/mem.h"

#include <stdatomic.h>

static _Atomic uint64_t generation = 1;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void in_child(void)
{
    atomic_fetch_add(&generation, 1);
    mem_fork_child();
}

static void install(void)
{
    pthread_atfork(mem_fork_prepare, mem_fork_parent, in_child);
}

uint64_t fork_generation(void)
{
    pthread_once(&once, install);
    return atomic_load(&generation);
}

bool fork_is_mine(uint64_t gen)
{
    return atomic_load_explicit(&generation, memory_order_relaxed) == gen;
}
