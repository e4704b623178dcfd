/*
 * Two network namespaces of the test's own, joined by a veth pair:
 *
 *     0: 10.77.0.1/24, fd77::1/64 on va ---- vb: 10.77.0.2/24, fd77::2/64 :1
 *
 * A socket stays in the namespace in which it was made, so that one thread can use both ends.
 */
#ifndef TESTS_NETNS_H
#define TESTS_NETNS_H

struct netns_pair {
    int fd[2]; /* of the namespaces */
};

/* Ends the program with 77 and a reason when there can be none here. Call it before any thread is started. */
void netns_pair_make(struct netns_pair *n, int mtu);
/* This thread, and what it starts, is in that namespace from now on. */
void netns_enter(const struct netns_pair *n, int i);
/* A command for /bin/sh in that namespace; fails the program when it fails. Comes back to namespace 0. */
void netns_sh(const struct netns_pair *n, int i, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

#endif
