/* Memory for encrypted chunks on their way down. */
#include "base/util.h"
#include "outs.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

static void pieces_do_not_overlap_and_come_back(void **state)
{
    static const uint32_t sizes[] = {1, 65536, 65537, 200000, 1 << 20};
    struct outs *o = outs_new(4 * MiB);
    uint8_t *p[ARRAY_SIZE(sizes)], *base;
    void *memory;
    size_t len;

    (void)state;
    assert_non_null(o);
    outs_memory(o, &memory, &len);
    base = memory;
    assert_int_equal(len, 4 * MiB);
    for (int round = 0; round < 100; round++) {
        for (size_t i = 0; i < ARRAY_SIZE(sizes); i++) {
            p[i] = outs_get(o, sizes[i]);
            assert_true(p[i] >= base && p[i] + sizes[i] <= base + len);
            memset(p[i], (int)i + 1, sizes[i]);
        }
        for (size_t i = 0; i < ARRAY_SIZE(sizes); i++) {
            for (uint32_t k = 0; k < sizes[i]; k++)
                assert_int_equal(p[i][k], i + 1);
            outs_put(o, p[i], sizes[i]);
        }
    }
    outs_free(o);
}

static void without_room_there_is_none(void **state)
{
    struct outs *o = outs_new(4 * OUTS_GRAIN);
    uint8_t *a, *b;

    (void)state;
    assert_non_null(o);
    assert_null(outs_get(o, 4 * OUTS_GRAIN + 1));
    a = outs_get(o, 2 * OUTS_GRAIN);
    b = outs_get(o, OUTS_GRAIN + 1);
    assert_non_null(a);
    assert_non_null(b);
    assert_null(outs_get(o, 1));
    outs_put(o, a, 2 * OUTS_GRAIN);
    assert_null(outs_get(o, 3 * OUTS_GRAIN));
    assert_non_null(outs_get(o, 1));
    outs_put(o, b, OUTS_GRAIN + 1);
    outs_free(o);
    outs_free(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pieces_do_not_overlap_and_come_back),
        cmocka_unit_test(without_room_there_is_none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
