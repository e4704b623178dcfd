/* For the tests of single operations on data: bytes to write, and what a file is to have. */
#ifndef TESTS_DATA_BYTES_H
#define TESTS_DATA_BYTES_H

#include "data_fixture.h"

#define FILE_MAX_TEST (3 * 1024 * 1024)

static uint8_t model[FILE_MAX_TEST], bytes[FILE_MAX_TEST];

static inline int setup(void **state)
{
    memset(model, 0, sizeof model);
    dx_fill(bytes, sizeof bytes, 7);
    return dx_setup(state);
}

static inline int teardown(void **state)
{
    dx_check_space();
    return dx_teardown(state);
}

#define DATA_TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

#endif
