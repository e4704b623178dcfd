/* The table between errno, gRPC status and wire name. */
#include "control/errs.h"

#include "base/err.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static void every_row_goes_there_and_back(void **state)
{
    int err, n = 0;
    (void)state;
    for (unsigned i = 0; !errs_row(i, &err); i++, n++) {
        assert_true(err < 0);
        assert_int_equal(errs_from_name(errs_name(err)), err);
        assert_string_equal(errs_name(err), err_name(err));
        assert_int_not_equal(errs_code(err), RPC_OK);
        assert_string_not_equal(errs_code_name(errs_code(err)), "?");
    }
    assert_true(n > 40);
}

static void rows_are_there_once(void **state)
{
    int a, b;
    (void)state;
    for (unsigned i = 0; !errs_row(i, &a); i++)
        for (unsigned k = 0; k < i && !errs_row(k, &b); k++)
            assert_int_not_equal(a, b);
}

static void what_the_store_returns_has_a_row(void **state)
{
    static const int used[] = {
        EPERM, ENOENT, EIO, ENXIO, EBADF, EAGAIN, ENOMEM, EACCES, EBUSY, EEXIST, EXDEV, ENOTDIR, EISDIR, EINVAL, EMFILE,
        EFBIG, ENOSPC, EROFS, EMLINK, ERANGE, ENAMETOOLONG, ENOTEMPTY, ELOOP, ENODATA, EOPNOTSUPP, EDQUOT, ESTALE,
        ECANCELED, EKEYREVOKED, EKEYEXPIRED, EBADMSG, EPROTO, ENOTCONN, ETIMEDOUT, ENOLCK, E2BIG};
    (void)state;
    for (size_t i = 0; i < sizeof used / sizeof *used; i++)
        assert_int_equal(errs_from_name(errs_name(-used[i])), -used[i]);
}

static void unknown_names_and_numbers_are_eio(void **state)
{
    (void)state;
    assert_int_equal(errs_from_name("EWHAT"), -EIO);
    assert_int_equal(errs_from_name("enoent"), -EIO);
    assert_int_equal(errs_from_name(""), 0);
    assert_int_equal(errs_from_name(NULL), 0);
    assert_string_equal(errs_name(-ENOTTY), "EIO");
    assert_int_equal(errs_code(-ENOTTY), RPC_INTERNAL);
    assert_string_equal(errs_name(0), "");
    assert_int_equal(errs_code(0), RPC_OK);
    assert_int_equal(errs_from_name("ENOTSUP"), -EOPNOTSUPP);
    assert_int_equal(errs_from_name("EWOULDBLOCK"), -EAGAIN);
}

static void bare_statuses_have_an_errno(void **state)
{
    (void)state;
    assert_int_equal(errs_from_code(RPC_OK), 0);
    for (enum rpc_code c = RPC_CANCELLED; c <= RPC_UNAUTHENTICATED; c++)
        assert_true(errs_from_code(c) < 0);
    assert_int_equal(errs_from_code(RPC_UNAVAILABLE), -ENOTCONN);
    assert_int_equal(errs_from_code(RPC_DEADLINE_EXCEEDED), -ETIMEDOUT);
    assert_int_equal(errs_from_code((enum rpc_code)99), -EIO);
    assert_string_equal(errs_code_name((enum rpc_code)99), "?");
}

static void some_rows_as_the_protocol_page_states_them(void **state)
{
    (void)state;
    assert_int_equal(errs_code(-ENOENT), RPC_NOT_FOUND);
    assert_int_equal(errs_code(-EEXIST), RPC_ALREADY_EXISTS);
    assert_int_equal(errs_code(-ESTALE), RPC_UNAUTHENTICATED);
    assert_int_equal(errs_code(-EPROTO), RPC_FAILED_PRECONDITION);
    assert_int_equal(errs_code(-ENOTEMPTY), RPC_FAILED_PRECONDITION);
    assert_int_equal(errs_code(-EPERM), RPC_PERMISSION_DENIED);
    assert_int_equal(errs_code(-ENOSPC), RPC_RESOURCE_EXHAUSTED);
    assert_int_equal(errs_code(-EIO), RPC_DATA_LOSS);
    assert_string_equal(errs_code_name(RPC_DATA_LOSS), "DATA_LOSS");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_row_goes_there_and_back),
        cmocka_unit_test(rows_are_there_once),
        cmocka_unit_test(what_the_store_returns_has_a_row),
        cmocka_unit_test(unknown_names_and_numbers_are_eio),
        cmocka_unit_test(bare_statuses_have_an_errno),
        cmocka_unit_test(some_rows_as_the_protocol_page_states_them),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
