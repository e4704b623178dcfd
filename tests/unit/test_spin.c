/* When a data thread polls on before it sleeps. */
#include "spin.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#define MOMENT 20000u

static uint64_t now = 1;

/* Idle until something comes, `after` nanoseconds later, by polls that take 1000 each: did it poll until then? */
static bool comes_after(struct spin *p, uint64_t after)
{
    uint64_t at = now + after;

    for (; now < at; now += 1000)
        if (!spin_on(p, now)) {
            now = at; /* it slept */
            spin_got(p);
            return false;
        }
    spin_got(p);
    return true;
}

static void it_polls_on_as_long_as_something_comes_in_time(void **state)
{
    struct spin p = spin_for(MOMENT);

    (void)state;
    for (int i = 0; i < 1000; i++)
        assert_true(comes_after(&p, i % 2 ? 15000 : 3000));
}

static void what_always_comes_later_is_slept_for(void **state)
{
    struct spin p = spin_for(MOMENT);
    int polled = 0;

    (void)state;
    for (unsigned i = 0; i < SPIN_WORTH_MAX; i++) {
        assert_true(spin_on(&p, now)); /* it tries */
        assert_false(comes_after(&p, 100000));
    }
    for (int i = 0; i < 160; i++) {
        bool on = spin_on(&p, now);
        polled += on;
        assert_false(on && comes_after(&p, 100000));
        spin_got(&p);
    }
    assert_int_equal(polled, 160 / SPIN_EVERY);
}

static void it_begins_again_when_that_changes(void **state)
{
    struct spin p = spin_for(MOMENT);
    int slept = 0;

    (void)state;
    for (int i = 0; i < 50; i++)
        comes_after(&p, 100000);
    for (int i = 0; i < 200; i++)
        slept += !comes_after(&p, 5000);
    assert_true(slept < (int)SPIN_EVERY);
    assert_true(comes_after(&p, 5000));
    for (int i = 0; i < 8; i++) { /* one that is late now and then ends nothing */
        assert_false(comes_after(&p, 50000));
        for (int k = 0; k < 2; k++)
            assert_true(comes_after(&p, 5000));
    }
}

static void without_a_moment_it_sleeps_at_once(void **state)
{
    struct spin p = spin_for(0);

    (void)state;
    for (int i = 0; i < 100; i++)
        assert_false(comes_after(&p, 1));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_polls_on_as_long_as_something_comes_in_time),
        cmocka_unit_test(what_always_comes_later_is_slept_for),
        cmocka_unit_test(it_begins_again_when_that_changes),
        cmocka_unit_test(without_a_moment_it_sleeps_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
