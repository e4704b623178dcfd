/* What the benchmark programs over the public API share. */
#ifndef BENCH_UTIL_H
#define BENCH_UTIL_H

#include "base/util.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/types.h>

extern const char *bench_program;

void die(const char *what, int err, const char *text) __attribute__((noreturn));
/* Ends the program with pst_last_error() when r is negative. */
void check(const char *what, int64_t r);

/* "key=value" arguments; one of the targets is set. key NULL ends the table. */
struct bench_arg {
    const char *key;
    const char **text;
    uint64_t *number;
    double *real;
};
void bench_args(const struct bench_arg *args, int argc, char **argv, int first);

/* Seconds of processor time that a process has used, all its threads, user and system; 0: this one. */
double process_cpu(pid_t pid);
struct rng;
/* Bytes that become shorter by a half, about. */
void fill_text(struct rng *r, uint8_t *p, size_t n);
/* Seconds that the processors of the machine have worked; what others had of them (steal) is not counted. */
double machine_busy(void);
void sort_u32(uint32_t *v, size_t n);
/* The p-quantile of sorted nanoseconds, in microseconds. */
double at_us(const uint32_t *sorted, size_t n, double p);

#endif
