/* What the tests of a remote store have in common; their calls fail the test. */
#ifndef TESTS_REMOTE_CASE_H
#define TESTS_REMOTE_CASE_H

#include "penstock/penstock.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

extern const char *program; /* the penstock command */
extern uint64_t seed;
extern bool extended;

/* From the arguments PENSTOCK [TEST] and the environment; 0, or the program's exit status. */
int remote_main_begin(int argc, char **argv);
/* base: the daemon's or its proxy's, of api_base from now on. */
struct pst_fs *connect_at(const char *base, const char *container, unsigned timeout_ms);
void nap(int ms);
/* A daemon's metric without labels. */
double figure_of(const char *base, const char *name);
/* Another process, which moves bytes (PENSTOCK_PLACEMENT: as said) for ever; and its sudden end. */
pid_t busy_client(const char *base, bool writes, const char *placement);
void kill_client(pid_t pid);
/* Pieces of clients' memory that a daemon has mapped. */
int memory_mapped(pid_t daemon);
/* Record i, of all kinds of sizes up to RECORD_MAX: in the message, by memory. It carries its number and a pattern. */
#define RECORD_MAX 200000
size_t record(int i, uint8_t *buf);
/* The file is records 0 .. count - 1 and no more. */
void check_records(struct pst_fs *fs, const char *path, int count);

/* Makes, links, renames and removes names of round i. Each call must succeed, which a second execution of the same
 * request would not. */
void names_round(struct pst_fs *fs, int i);

#endif
