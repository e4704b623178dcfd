/* What this process has of the system, for tests that it gives all back. Include cmocka.h first. */
#ifndef TESTS_OWN_USE_H
#define TESTS_OWN_USE_H

#include <dirent.h>
#include <stdio.h>
#include <unistd.h>

static inline unsigned descriptors(void)
{
    unsigned n = 0;
    DIR *d = opendir("/proc/self/fd");
    assert_non_null(d);
    while (readdir(d))
        n++;
    closedir(d);
    return n;
}

static inline long resident_kib(void)
{
    long pages = 0, skip;
    FILE *f = fopen("/proc/self/statm", "re");
    assert_non_null(f);
    assert_int_equal(fscanf(f, "%ld %ld", &skip, &pages), 2);
    fclose(f);
    return pages * (sysconf(_SC_PAGESIZE) / 1024);
}

#endif
