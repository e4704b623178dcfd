/* What a harness has: libFuzzer's entry, and an input that it accepts, from which main.c makes mutants. */
#ifndef FUZZ_FUZZ_H
#define FUZZ_FUZZ_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

/* What must hold for every input. Says what did not, on standard output: harnesses may silence the other. */
#define CHECK(c)                                                                                                       \
    do {                                                                                                               \
        if (!(c)) {                                                                                                    \
            printf("%s:%d: not so: %s\n", __FILE__, __LINE__, #c);                                                     \
            fflush(stdout);                                                                                            \
            abort();                                                                                                   \
        }                                                                                                              \
    } while (0)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
/* A valid input into buf (cap bytes), different for each n; returns its length. */
size_t fuzz_sample(uint64_t n, uint8_t *buf, size_t cap);

#endif
