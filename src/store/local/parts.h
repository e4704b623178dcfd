/* What the parts of the substrate (open, super, index, txn, log, sync, alloc, io) offer one another. */
#ifndef LOCAL_PARTS_H
#define LOCAL_PARTS_H

#include "engine.h"

/* ---- locks.c ---- */
int locks_open(struct engine *e);
void locks_close(struct engine *e); /* accepts a store whose locks are not made */

#endif
