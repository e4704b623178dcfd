/* For the generated stubs (symbols.py). Returns the value of a call that is not supported, sets errno, and says so. */
#ifndef VERBS_STUB_H
#define VERBS_STUB_H

#include <stddef.h>

int stub_refuse(const char *name);

#endif
