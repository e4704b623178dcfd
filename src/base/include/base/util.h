/* Small helpers every layer uses: sizes, clean-up attributes, time. */
#ifndef BASE_UTIL_H
#define BASE_UTIL_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#define ARRAY_SIZE(a) (sizeof(a) / sizeof((a)[0]))
#define container_of(ptr, type, member) ((type *)((char *)(ptr)-offsetof(type, member)))

#define KiB 1024ull
#define MiB (1024ull * KiB)
#define GiB (1024ull * MiB)

#define NSEC_PER_SEC  1000000000ull
#define NSEC_PER_MSEC 1000000ull

static inline uint64_t min_u64(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static inline uint64_t max_u64(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* align must be a power of two. */
static inline uint64_t align_down(uint64_t v, uint64_t align)
{
    return v & ~(align - 1);
}

static inline uint64_t align_up(uint64_t v, uint64_t align)
{
    return (v + align - 1) & ~(align - 1);
}

static inline bool is_pow2(uint64_t v)
{
    return v && !(v & (v - 1));
}

/* Monotonic, for deadlines and durations. Never stored. */
static inline uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * NSEC_PER_SEC + (uint64_t)t.tv_nsec;
}

/* Wall clock, for file times and expiry dates: nanoseconds since the epoch. */
static inline int64_t wall_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (int64_t)t.tv_sec * (int64_t)NSEC_PER_SEC + t.tv_nsec;
}

/* Clean-up at the end of a scope: `cleanup_free char *p = ...;` */
static inline void cleanup_free_fn(void *p)
{
    free(*(void **)p);
}

static inline void cleanup_close_fn(int *fd)
{
    if (*fd >= 0)
        close(*fd);
}

static inline void cleanup_unlock_fn(pthread_mutex_t **m)
{
    if (*m)
        pthread_mutex_unlock(*m);
}

#define cleanup_free   __attribute__((cleanup(cleanup_free_fn)))
#define cleanup_close  __attribute__((cleanup(cleanup_close_fn)))
#define cleanup_unlock __attribute__((cleanup(cleanup_unlock_fn)))

/* Locks a mutex until the end of the scope. */
#define SCOPED_LOCK_CAT2(a, b) a##b
#define SCOPED_LOCK_CAT(a, b)  SCOPED_LOCK_CAT2(a, b)
#define scoped_lock(m)                                                                                                 \
    cleanup_unlock pthread_mutex_t *SCOPED_LOCK_CAT(scoped_lock_, __LINE__) = (pthread_mutex_lock(m), (m));            \
    (void)SCOPED_LOCK_CAT(scoped_lock_, __LINE__)

/* Takes the value out of an owned pointer, so that its clean-up does nothing. */
#define take_ptr(p)                                                                                                    \
    ({                                                                                                                 \
        __typeof__(p) take_ptr_v = (p);                                                                                \
        (p) = NULL;                                                                                                    \
        take_ptr_v;                                                                                                    \
    })

#endif
