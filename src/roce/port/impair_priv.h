/* Inside of the impairment port. */
#ifndef PORT_IMPAIR_PRIV_H
#define PORT_IMPAIR_PRIV_H

#include "base/list.h"
#include "base/rng.h"
#include "match.h"

#define IMPAIR_RULES        64u
#define IMPAIR_DELAY_US_MAX 60000000u
#define IMPAIR_HELD_BYTES   (32u << 20) /* held back in one direction; beyond it packets are dropped */

struct rule {
    enum port_impair_action action;
    struct match match;
    uint64_t nth, every, shots; /* 0: not said */
    double prob;
    uint64_t delay_ns;
    int64_t byte; /* -1: a random one */
    uint64_t matched, acted;
};

/* Number of rules, or -EINVAL and a line in err that names the word. rules: IMPAIR_RULES of them. */
int impair_parse(struct rule *rules, const char *text, char *err, size_t err_size);
/* The first rule that acts on the packet, or NULL; all before it have counted it. */
struct rule *impair_judge(struct rule *rules, int n, struct rng *rng, bool tx, const struct port_addr *from,
                          const struct port_addr *to, const uint8_t *head, size_t len);

#endif
