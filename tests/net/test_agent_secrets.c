/*
 * Keys in the agent only: the server behind it has neither the tenant's key nor data keys nor plain bytes, in its
 * memory, in its files, or on the way to it. In a network namespace of its own, where packets may be captured.
 * usage: test_agent_secrets PENSTOCK SEARCH.PY
 */
#include "api_cases.h"
#include "base/crypto.h"
#include "base/util.h"
#include "daemon.h"
#include "keys.h"
#include "remote/remote_store.h"
#include "remote_case.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define BYTES   (3 * MiB + 1000)
#define KEY     "7d1f3c9ab4e2085561c7f0d99a3e5b2248d6017ce3f98a40b51d6e27c0943fa8"
#define NAME    "a-name-that-the-server-does-know"
#define PLANTED "planted: what only the host and the agent may know, 0123456789"

static const char *search;

static void hex(const void *bytes, size_t n, char *ret)
{
    for (size_t i = 0; i < n; i++)
        snprintf(ret + 2 * i, 3, "%02x", ((const uint8_t *)bytes)[i]);
}

static void put_key(const char *path)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL, 0600);

    assert_true(fd >= 0);
    assert_int_equal(write(fd, KEY, 64), 64);
    close(fd);
}

/* What goes to and from the server is on 127.0.0.2: the proxy in front of it. */
static pid_t start_capture(const char *file)
{
    int p[2];
    char c[8] = "";
    pid_t pid;

    assert_int_equal(pipe(p), 0);
    pid = fork();
    if (pid == 0) {
        dup2(p[1], 1);
        execl("/usr/bin/python3", "python3", search, "capture", file, "127.0.0.2", (char *)NULL);
        _exit(127);
    }
    close(p[1]);
    assert_true(read(p[0], c, sizeof c) > 0); /* "ready" */
    fcntl(p[0], F_SETFD, FD_CLOEXEC);         /* it stays open: the capture says one more line */
    return pid;
}

static void end_capture(pid_t pid)
{
    int status;

    nap(300); /* for what is in its socket */
    kill(pid, SIGTERM);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
}

/*
 * Written, changed in place, and read: by the chunk, and in the small pieces that go with a message. What is encrypted
 * is read by the server from where it is; what it sends is copied before it is opened, since the server might change it
 * meanwhile.
 */
static void use_files(struct pst_fs *fs, const char *base, uint8_t *buf)
{
    double copied, direct;
    struct pst_file *f;

    for (size_t i = 0; i + sizeof PLANTED < BYTES; i += sizeof PLANTED)
        memcpy(buf + i, PLANTED, sizeof PLANTED);
    f = api_open_new(fs, "/" NAME, O_DIRECT);
    copied = figure_of(base, "remote_copied_bytes_total");
    direct = figure_of(base, "remote_direct_bytes_total");
    assert_int_equal(pst_pwrite(f, buf, BYTES / MiB * MiB, 0), BYTES / MiB * MiB);
    assert_int_equal(figure_of(base, "remote_copied_bytes_total"), copied);
    assert_true(figure_of(base, "remote_direct_bytes_total") >= direct + BYTES / MiB * MiB);
    assert_int_equal(pst_pwrite(f, buf, BYTES, 0), BYTES);
    assert_int_equal(pst_pwrite(f, PLANTED, sizeof PLANTED, MiB - 20), sizeof PLANTED);
    assert_int_equal(pst_append(f, PLANTED, sizeof PLANTED, NULL), sizeof PLANTED);
    assert_int_equal(pst_fsync(f), 0);
    direct = figure_of(base, "remote_direct_bytes_total");
    assert_int_equal(pst_pread(f, buf, BYTES, 0), BYTES);
    assert_int_equal(figure_of(base, "remote_direct_bytes_total"), direct);
    assert_int_equal(pst_close(f), 0);
    api_put(fs, "/short", PLANTED);
    api_expect(fs, "/short", PLANTED);
}

/* As the agent finds it: from the object's header, which the server has, and the tenant's key, which it has not. */
static void data_key_of(const struct daemon *d, const char *name, uint8_t ret[SEAL_KEY])
{
    static const struct pst_ctx trusted;
    struct header_place at = {.ino = 0};
    struct keyring ring = {0};
    uint8_t header[HEADER_BYTES], tenant[SEAL_KEY];
    struct seal *seal = seal_new();
    char url[80], err[300] = "";
    struct pst_store *st;
    struct pst_cont *c;
    struct pst_attr a;
    bool old;

    snprintf(url, sizeof url, "penstock://127.0.0.1:%d", d->backend_port);
    if (pst_backend_open(url, NULL, 0, &st, err, sizeof err) < 0)
        fail_msg("%s", err);
    assert_int_equal(pst_cont_open(st, &trusted, "p", "secrets", &c), 0);
    assert_int_equal(pst_store_lookup(c, &trusted, PST_ROOT_INO, name, &a), 0);
    assert_int_equal(pst_store_getxattr(c, &trusted, a.ino, HEADER_XATTR, header, sizeof header), sizeof header);
    assert_int_equal(key_parse((const uint8_t *)KEY, 64, tenant), 0);
    assert_int_equal(tenant_key_init(&ring.now, tenant), 0);
    memcpy(at.cont, c->info.uuid, sizeof at.cont);
    at.ino = a.ino;
    assert_int_equal(header_open(&ring, seal, &at, header, sizeof header, ret, &old), 0);
    pst_cont_close(c);
    pst_store_close(st);
    seal_free(seal);
}

static void the_server_behind_an_agent_has_neither_keys_nor_plain_text(void **state)
{
    char key_file[60], filter[100]; /* not the environment, which all daemons here have in common */
    const char *const filters[] = {"--filter", filter, NULL};
    char packets[100], cmd[2000], planted[2 * sizeof PLANTED], name[2 * sizeof NAME], key_text[2 * sizeof KEY];
    char data_key[2][2 * SEAL_KEY + 1];
    uint8_t *buf = malloc(BYTES), key[SEAL_KEY];
    struct pst_fs *fs;
    struct daemon d;
    pid_t capture;

    (void)state;
    snprintf(key_file, sizeof key_file, "/tmp/pst-secrets-%d.key", (int)getpid());
    snprintf(filter, sizeof filter, "crypt:key_file=%s", key_file);
    put_key(key_file);
    assert_true(daemon_start(&d, program, filters));
    unlink(key_file);
    snprintf(packets, sizeof packets, "%s/packets", d.dir);
    capture = start_capture(packets);
    fs = connect_at(d.base, "secrets", 0);
    use_files(fs, d.base, buf);
    for (int i = 0; i < 2; i++) {
        data_key_of(&d, i ? "short" : NAME, key);
        hex(key, sizeof key, data_key[i]);
    }
    end_capture(capture);
    hex(PLANTED, sizeof PLANTED - 1, planted);
    hex(NAME, sizeof NAME - 1, name);
    hex(KEY, sizeof KEY - 1, key_text);

    snprintf(cmd, sizeof cmd,
             "/usr/bin/python3 %s find --pid %d --files %s/store --packets %s --secret 'the plain text=%s' "
             "--secret 'the key=%s' --secret 'the key in hexadecimal=%s' --secret 'a data key=%s' "
             "--secret 'another data key=%s' --must 'a name=%s'",
             search, (int)d.backend, d.dir, packets, planted, KEY, key_text, data_key[0], data_key[1], name);
    assert_int_equal(system(cmd), 0);
    /* They are found where they are. */
    snprintf(cmd, sizeof cmd, "/usr/bin/python3 %s find --pid %d --must 'the key=%s' --must 'a data key=%s'", search,
             (int)d.pid, KEY, data_key[0]);
    assert_int_equal(system(cmd), 0);
    assert_int_equal(pst_disconnect(fs), 0);
    daemon_done(&d);
    free(buf);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_server_behind_an_agent_has_neither_keys_nor_plain_text),
    };
    int r = argc == 3 ? remote_main_begin(2, argv) : 2;

    if (r)
        return r;
    search = argv[2];
    setenv("PENSTOCK_TEST_AGENT", "proxy", 1);
    pst_backend_register(&pst_remote_backend);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
