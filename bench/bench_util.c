#include "bench_util.h"

#include "base/rng.h"

#include <penstock/penstock.h>

#include <string.h>
#include <time.h>

const char *bench_program = "bench";

void die(const char *what, int err, const char *text)
{
    fprintf(stderr, "%s: %s: %s %s\n", bench_program, what, pst_error_name(err), text);
    exit(1);
}

void check(const char *what, int64_t r)
{
    if (r < 0)
        die(what, (int)r, pst_last_error());
}

static bool take(const struct bench_arg *a, const char *value)
{
    char *end = NULL;

    if (a->text)
        *a->text = value;
    else if (a->number)
        *a->number = strtoull(value, &end, 10);
    else
        *a->real = strtod(value, &end);
    return !end || (end != value && !*end);
}

void bench_args(const struct bench_arg *args, int argc, char **argv, int first)
{
    for (int i = first; i < argc; i++) {
        const struct bench_arg *a = args;
        const char *eq = strchr(argv[i], '=');

        while (eq && a->key && (strlen(a->key) != (size_t)(eq - argv[i]) || strncmp(a->key, argv[i], strlen(a->key))))
            a++;
        if (!eq || !a->key || !take(a, eq + 1))
            die(argv[i], -EINVAL, "");
    }
}

double process_cpu(pid_t pid)
{
    clockid_t clock;
    struct timespec t;
    int r = clock_getcpuclockid(pid, &clock);

    if (r || clock_gettime(clock, &t))
        die("processor time", r ? -r : -errno, "");
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

void fill_text(struct rng *r, uint8_t *p, size_t n)
{
    static const char text[] = "0123456789 the quick brown fox jumps over lazy dogs\n";

    for (size_t i = 0; i < n; i++)
        p[i] = (uint8_t)text[rng_below(r, 4) ? i % 52 : (size_t)rng_below(r, 52)];
}

double machine_busy(void)
{
    unsigned long long t[7] = {0};
    FILE *f = fopen("/proc/stat", "re");
    int n = !f ? 0
               : fscanf(f, "cpu %llu %llu %llu %llu %llu %llu %llu", &t[0], &t[1], &t[2], &t[3], &t[4], &t[5], &t[6]);

    if (f)
        fclose(f);
    if (n != 7)
        die("/proc/stat", -EIO, "");
    return (double)(t[0] + t[1] + t[2] + t[5] + t[6]) / (double)sysconf(_SC_CLK_TCK); /* without idle and iowait */
}

static int by_value(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

    return (x > y) - (x < y);
}

void sort_u32(uint32_t *v, size_t n)
{
    qsort(v, n, sizeof *v, by_value);
}

double at_us(const uint32_t *sorted, size_t n, double p)
{
    return n ? (double)sorted[min_u64(n - 1, (uint64_t)(p * (double)n))] / 1e3 : 0;
}
