/* Which attributes a transition of a queue pair needs and allows: IBTA table 96. */
#ifndef QP_TABLE96_H
#define QP_TABLE96_H

#include "uroce/types.h"

#include <stdbool.h>

/* 0, or -EINVAL: no such transition, an attribute is missing, or one may not be set. */
int table96_check(enum uroce_qp_type type, enum uroce_qp_state from, enum uroce_qp_state to, unsigned int mask);

#endif
