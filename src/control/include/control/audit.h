/*
 * The audit log: who came, what was granted, what was refused, what administrators did. A line of JSON for each event:
 *
 *   {"time":"2026-01-31T12:00:00.000001Z","event":"session_open","tenant":"t","credential":"c","peer":"...",
 *    "what":"mount"}
 *
 * To put a line never waits: a thread writes, within a few milliseconds and all that came meanwhile at once. What does
 * not fit in the buffer, or cannot be written (a full disk), is dropped and counted; the next line that gets through is
 * preceded by one that says how many are missing.
 */
#ifndef CONTROL_AUDIT_H
#define CONTROL_AUDIT_H

#include <stdint.h>

struct audit;

/* max_bytes: then FILE becomes FILE.1 and so on, `keep` of them. 0, or -errno: the file cannot be opened. */
int audit_open(const char *path, uint64_t max_bytes, unsigned keep, struct audit **ret);
/* Writes what is there. Accepts NULL. */
void audit_close(struct audit *a);
/* Opens the file anew: something else has moved it away. Any thread. Accepts NULL. */
void audit_reopen(struct audit *a);

/* What is known of an event; NULL and "": not told. */
struct audit_event {
    const char *event, *tenant, *credential, *peer, *what, *error;
    uint64_t request; /* its id, as in the logs; 0: not told */
};
/* Any thread; a may be NULL. */
void audit_put(struct audit *a, const struct audit_event *e);

struct audit_counts {
    uint64_t lines, lost; /* written; dropped */
};
struct audit_counts audit_counts(struct audit *a);

#endif
