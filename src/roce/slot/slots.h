/* The slots of the registry, and what they share. */
#ifndef SLOT_SLOTS_H
#define SLOT_SLOTS_H

#include "slot/slot.h"

extern const struct slot_ops slot_count_ops, slot_sum_ops;

/* Text that is cut where the buffer ends. */
struct slot_text {
    char *buf;
    size_t size, used;
};
void slot_print(struct slot_text *t, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#endif
