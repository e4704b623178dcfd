/*
 * Runs a harness without libFuzzer: over the files named as arguments, or over random bytes and mutants of valid inputs
 * (PENSTOCK_SEED; PENSTOCK_FUZZ_FACTOR=40 for that many times as many).
 */
#include "fuzz.h"

#include "base/rng.h"
#include "base/util.h"

#include <stdio.h>
#include <string.h>

#define INPUT_MAX 65536u

static uint8_t buf[INPUT_MAX];

/* Some bytes are changed, some ranges cut or doubled. */
static size_t mutate(struct rng *r, size_t n)
{
    for (uint64_t k = rng_below(r, 4) + 1; k && n; k--) {
        size_t at = (size_t)rng_below(r, n);
        switch (rng_below(r, 4)) {
        case 0:
            buf[at] ^= (uint8_t)(1u << rng_below(r, 8));
            break;
        case 1:
            buf[at] = (uint8_t)(rng_below(r, 2) ? 0xff : 0);
            break;
        case 2:
            n = at;
            break;
        default:
            if (n + 16 < INPUT_MAX) {
                memmove(buf + at + 16, buf + at, n - at);
                n += 16;
            }
        }
    }
    return n;
}

/* A copy of exactly n bytes, so that a sanitizer sees a read past the end. */
static void run(size_t n)
{
    uint8_t *p = malloc(n ? n : 1);
    if (!p)
        abort();
    memcpy(p, buf, n);
    LLVMFuzzerTestOneInput(p, n);
    free(p);
}

int main(int argc, char **argv)
{
    const char *seed_text = getenv("PENSTOCK_SEED"), *factor = getenv("PENSTOCK_FUZZ_FACTOR");
    uint64_t seed = seed_text ? strtoull(seed_text, NULL, 0) : now_ns(),
             count = (factor ? strtoull(factor, NULL, 0) : 1) * FUZZ_COUNT;
    struct rng r;

    for (int i = 1; i < argc; i++) {
        FILE *f = fopen(argv[i], "rb");
        if (!f) {
            perror(argv[i]);
            return 1;
        }
        run(fread(buf, 1, sizeof buf, f));
        fclose(f);
    }
    if (argc > 1)
        return 0;
    printf("seed %llu\n", (unsigned long long)seed);
    fflush(stdout); /* an abort does not */
    rng_seed(&r, seed);
    for (uint64_t i = 0; i < count; i++) {
        size_t n = fuzz_sample(rng_u64(&r), buf, sizeof buf);
        if (i % 8 == 0) {
            n = (size_t)rng_below(&r, 256);
            rng_fill(&r, buf, n);
        } else if (i % 8 > 1) {
            n = mutate(&r, n);
        }
        run(n);
    }
    return 0;
}
