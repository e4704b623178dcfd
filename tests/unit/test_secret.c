/* Files with secrets: which are taken, and what is said of the others. */
#include "base/secret.h"
#include "base/util.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char dir[] = "/tmp/pst-secret-XXXXXX", path[64];

static void put(const void *bytes, size_t n, mode_t mode)
{
    int fd;

    unlink(path);
    fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, bytes, n), n);
    assert_int_equal(fchmod(fd, mode), 0);
    close(fd);
}

static void takes(const char *text, const char *want)
{
    char token[SECRET_TOKEN_MAX + 1] = "", err[300] = "";

    put(text, strlen(text), 0600);
    assert_int_equal(secret_token(path, token, err, sizeof err), strlen(want));
    assert_string_equal(token, want);
    assert_string_equal(err, "");
}

static void refuses(const void *bytes, size_t n, mode_t mode, int error, const char *why)
{
    char token[SECRET_TOKEN_MAX + 1] = "as it was", err[300] = "", want[300];

    put(bytes, n, mode);
    assert_int_equal(secret_token(path, token, err, sizeof err), error);
    snprintf(want, sizeof want, "token file %s%s", path, why);
    assert_string_equal(err, want);
    assert_string_equal(token, "as it was");
}

static void a_token_is_the_first_line_without_its_end(void **state)
{
    char most[SECRET_TOKEN_MAX + 10];

    (void)state;
    takes("0123456789abcdef", "0123456789abcdef");
    takes("0123456789abcdef\n", "0123456789abcdef");
    takes("0123456789abcdef\r\n", "0123456789abcdef");
    takes("two words 012345678\nand more lines\n\n", "two words 012345678");
    memset(most, 'x', sizeof most);
    strcpy(most + SECRET_TOKEN_MAX, "\r\nmore");
    put(most, strlen(most), 0400);
    assert_int_equal(secret_token(path, most, most + SECRET_TOKEN_MAX + 1, 5), SECRET_TOKEN_MAX);
}

static void what_is_no_token_is_refused_with_the_reason(void **state)
{
    static const char none[] = ": its first line has a character that is none of a token";
    char long_line[SECRET_TOKEN_MAX + 100];

    (void)state;
    refuses("", 0, 0600, -EINVAL, ": its first line is empty");
    refuses("\n0123456789abcdef\n", 18, 0600, -EINVAL, ": its first line is empty");
    refuses("0123456789abcde\n", 16, 0600, -EINVAL, ": its first line must have at least 16 characters");
    refuses("01234567\0009abcdef\n", 18, 0600, -EINVAL, none);
    refuses("0123456789abcdef\0\n", 18, 0600, -EINVAL, none);
    refuses("01234567\t9abcdef\n", 17, 0600, -EINVAL, none);
    refuses("0123456789\rabcdef\n", 18, 0600, -EINVAL, none);
    refuses("0123456789abcdef \n", 18, 0600, -EINVAL, ": its first line begins or ends with a blank");
    refuses(" 0123456789abcdef\n", 18, 0600, -EINVAL, ": its first line begins or ends with a blank");
    memset(long_line, 'x', sizeof long_line);
    refuses(long_line, sizeof long_line, 0600, -EINVAL, ": its first line has more than 512 characters");
    long_line[SECRET_TOKEN_MAX + 1] = '\n';
    refuses(long_line, sizeof long_line, 0600, -EINVAL, ": its first line has more than 512 characters");
    refuses("0123456789abcdef\n", 17, 0640, -EPERM, " may be read by others: chmod 600 it");
    refuses("0123456789abcdef\n", 17, 0604, -EPERM, " may be read by others: chmod 600 it");
}

/* Container platforms hand secrets over as files that others may read. */
static void a_token_to_show_may_be_read_by_others_but_not_written(void **state)
{
    char token[SECRET_TOKEN_MAX + 1], err[300];

    (void)state;
    put("0123456789abcdef\n", 17, 0444);
    assert_int_equal(secret_token_to_show(path, token, err, sizeof err), 16);
    assert_string_equal(token, "0123456789abcdef");
    for (mode_t mode = 0620; mode >= 0602; mode -= 016) {
        put("0123456789abcdef\n", 17, mode);
        assert_int_equal(secret_token_to_show(path, token, err, sizeof err), -EPERM);
        assert_non_null(strstr(err, "may be written by others: chmod 600 it"));
    }
}

static void what_cannot_be_read_is_named(void **state)
{
    char token[SECRET_TOKEN_MAX + 1], err[300], bytes[8];

    (void)state;
    assert_int_equal(secret_token("/none/of/it", token, err, sizeof err), -ENOENT);
    assert_non_null(strstr(err, "token file /none/of/it: No such file"));
    assert_int_equal(secret_bytes("key file", dir, bytes, sizeof bytes, err, sizeof err), -EISDIR);
    assert_non_null(strstr(err, "key file /tmp/pst-secret-"));
}

static void bytes_are_all_of_a_file(void **state)
{
    char bytes[8], err[300] = "";

    (void)state;
    put("\0\n\n4567", 7, 0600);
    assert_int_equal(secret_bytes("key file", path, bytes, sizeof bytes, err, sizeof err), 7);
    assert_memory_equal(bytes, "\0\n\n4567", 7);
    put("01234567", 8, 0600);
    assert_int_equal(secret_bytes("key file", path, bytes, sizeof bytes, err, sizeof err), 8);
    put("012345678", 9, 0600);
    assert_int_equal(secret_bytes("key file", path, bytes, sizeof bytes, err, sizeof err), -EINVAL);
    assert_non_null(strstr(err, "it is too long"));
    put("", 0, 0600);
    assert_int_equal(secret_bytes("key file", path, bytes, sizeof bytes, err, sizeof err), -EINVAL);
    assert_non_null(strstr(err, "it is empty"));
    put("01234567", 8, 0644);
    assert_int_equal(secret_bytes("key file", path, bytes, sizeof bytes, err, sizeof err), -EPERM);
}

/* In two pieces. */
static void *write_fifo(void *arg)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC);

    (void)arg;
    assert_int_equal(write(fd, "0123456789", 10), 10);
    usleep(50000);
    assert_int_equal(write(fd, "abcdef\n", 7), 7);
    close(fd);
    return NULL;
}

static void a_fifo_gives_it_in_pieces(void **state)
{
    char token[SECRET_TOKEN_MAX + 1], err[300];
    pthread_t id;

    (void)state;
    unlink(path);
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_int_equal(pthread_create(&id, NULL, write_fifo, NULL), 0);
    assert_int_equal(secret_token(path, token, err, sizeof err), 16);
    assert_string_equal(token, "0123456789abcdef");
    pthread_join(id, NULL);
}

static int set_up(void **state)
{
    (void)state;
    if (!mkdtemp(dir))
        return -1;
    snprintf(path, sizeof path, "%s/f", dir);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    unlink(path);
    return rmdir(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_token_is_the_first_line_without_its_end),
        cmocka_unit_test(what_is_no_token_is_refused_with_the_reason),
        cmocka_unit_test(a_token_to_show_may_be_read_by_others_but_not_written),
        cmocka_unit_test(what_cannot_be_read_is_named),
        cmocka_unit_test(bytes_are_all_of_a_file),
        cmocka_unit_test(a_fifo_gives_it_in_pieces),
    };

    return cmocka_run_group_tests(tests, set_up, tear_down);
}
