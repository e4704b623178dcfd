/*
 * Cases of the public API that hold over any store: in memory, embedded, on a server. Each has a container of its own.
 */
#ifndef TESTS_API_CASES_H
#define TESTS_API_CASES_H

#include <penstock/penstock.h>

/* URL up to the pool: "mem:?", "local:/dir?", "penstock://host:port/". */
extern const char *api_base;

/* Connects to a container, which is made if it is not there. timeout_ms 0: the default. */
int api_connect(const char *container, unsigned timeout_ms, struct pst_fs **ret);
/* For cmocka: *state is a struct pst_fs on a new container. */
int api_setup(void **state);
int api_teardown(void **state);

struct pst_file *api_open_new(struct pst_fs *fs, const char *path, int flags);
void api_put(struct pst_fs *fs, const char *path, const char *text);
void api_expect(struct pst_fs *fs, const char *path, const char *text);

/* Runs them all; the number of failures. */
int api_run_cases(void);
int api_run_data_cases(void); /* of these, those that are about bytes */

#endif
