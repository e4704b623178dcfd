/*
 * The work on the store of the tests of power loss: who does it, marking what was acknowledged, and who looks if it is
 * there.
 */
#ifndef TESTS_POWERLOSS_WORK_H
#define TESTS_POWERLOSS_WORK_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define SLOTS 12

extern const char *filters; /* on the store, separated by spaces; NULL: none */
/* Of the same boot, but after a loss of power it is of another: the store would not read it. */
extern bool recent;

void die(const char *fmt, ...) __attribute__((format(printf, 1, 2), noreturn));
/* Works on a new store, with its marks in the file `ack`; ends the process, with 0 if nothing failed. */
void writer(const char *dir, const char *ack, uint64_t seed) __attribute__((noreturn));

struct promise {
    bool ready;
    uint64_t begun[SLOTS], done[SLOTS];
};

/* One mark; user: the struct promise. */
void on_mark(void *user, const char *text);
/* In a child of its own; `store` must hold what was promised. */
pid_t verify_begin(const char *store, const struct promise *p, bool quiet);
/* True if all is right. */
bool verify_end(pid_t pid);

#endif
