/* One transport under test: ours (src/fabric) or bare libfabric calls, behind the same few calls. */
#ifndef BENCH_FABRIC_XP_H
#define BENCH_FABRIC_XP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define XP_SLOTS   32u
#define XP_MSG     160u /* bytes of a request with one segment, and more than a reply */
#define XP_SPIN_NS 20000u

struct xp;
struct xp_ops {
    const char *name;
    /* Connects the two processes; ctl: a socket between them. mem is the region that the other side reads and writes.
     */
    struct xp *(*open)(const char *provider, bool server, int ctl, uint8_t *mem, size_t len);
    void (*close)(struct xp *x);
    /* Between the same place in both sides' memory. done(slot) follows out of poll. */
    void (*rma)(struct xp *x, unsigned slot, bool write, size_t offset, size_t len);
    void (*send)(struct xp *x, const void *msg, size_t len);
    /* Once: takes what is there; spins for XP_SPIN_NS and then sleeps up to 5 ms when nothing is. */
    void (*poll)(struct xp *x);
};
/* In front of each implementation's own. */
struct xp {
    const struct xp_ops *ops;
    void (*done)(void *user, unsigned slot);
    void (*message)(void *user, const void *msg, size_t len);
    void *user;
};
extern const struct xp_ops xp_ours, xp_bare;
extern const char *xp_address; /* of this side, for xp_bare: loopback if nothing is said */

void xp_fail(const char *what, long err) __attribute__((noreturn));
void xp_tell(int fd, const void *p, size_t len);
void xp_hear(int fd, void *p, size_t len);

#endif
