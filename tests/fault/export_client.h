/*
 * A raw client's exported memory: the hand-over step by step, and requests that name it. Calls that must work fail the
 * test.
 */
#ifndef TESTS_EXPORT_CLIENT_H
#define TESTS_EXPORT_CLIENT_H

#include "raw_daemon.h"

#include "fabric/export.h"

#define BYTES (1u << 20)

/* Memory of a client, with its connection to the daemon. */
struct given {
    int conn, memfd;
    uint8_t *mem;
    uint64_t id;
};

int dial(void);
bool greet(const struct raw *c, int fd, struct export_talk *ret);
void send_fds(int fd, const void *msg, size_t len, const int *fds, size_t n);
int answer(int fd, uint64_t *ret_id);
int hand_over(const struct raw *c, int memfd, uint64_t bytes, int *ret_conn, uint64_t *ret_id);
/* A memfd of a client's own making. */
int sealed(size_t bytes, int seals, unsigned flags);

/* New memory, full of 'g', handed over. */
void give(const struct raw *c, size_t bytes, struct given *ret);
/* The daemon has closed it, within so long. */
bool ended(int fd, int ms);
/* Ends the export, and waits until the daemon has let go. */
void take_back(struct given *g, size_t bytes);
/* When the daemon has ended it already. */
void forget(struct given *g, size_t bytes);
/* A request under capability 0 of `conn` to move bytes between the file and the memory. */
struct dp_request io(uint8_t opcode, uint64_t offset, uint32_t len, const struct given *g, uint64_t at);

#endif
