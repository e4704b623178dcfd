/*
 * Request ids. A host's request keeps one number through an agent down to the engine, and the logs of all three have
 * it: the upper 48 bits of a data request's tag, `trace` in the header of a control request. It is for people: nothing
 * is decided by it, and a client may send what it likes.
 */
#ifndef BASE_TRACE_H
#define BASE_TRACE_H

#include <stdbool.h>
#include <stdint.h>

#define TRACE_SHIFT 16 /* in the tag of a data request */
#define TRACE_MAX   (UINT64_MAX >> TRACE_SHIFT)

/* Another one with each call, from a random start; never 0. */
uint64_t trace_new(void);
/*
 * The request that this thread works for; 0: none. Lines that the thread logs have it. trace_enter returns the one
 * before; of an id that is too large it takes the lower bits.
 */
uint64_t trace_current(void);
uint64_t trace_enter(uint64_t id);
/* For a request that goes out: `id`, or the thread's, or a new one. */
uint64_t trace_for(uint64_t id);

/*
 * From which duration on a request is told as slow; 0: none is. The default is a second, or PENSTOCK_LOG_SLOW
 * milliseconds.
 */
void trace_set_slow(uint64_t ns);

/*
 * Is the end of a request to be told? Each is at debug; one that was slow at info; one that failed, not with one of the
 * answers that programs ask for (ENOENT, EACCES, EDQUOT, ...) but for want of something that should be there, at warn,
 * or info in a library (warn: false). Of the last two only so many in a while, and then how many were left out.
 */
bool trace_tells(int status, uint64_t ns);
void trace_end(const char *component, bool warn, uint64_t id, int status, uint64_t ns, const char *fmt, ...)
    __attribute__((format(printf, 6, 7)));

#endif
