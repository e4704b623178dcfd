/*
 * Exported memory: what the daemon takes and what not, whom it believes, what a request may name, and when memory is
 * let go of. The client is raw; the daemon runs in this process, over a store that wants its bytes copied, or
 * ("agent") as an agent, whose store works in the client's memory.
 */
#include "export_client.h"

#include "base/rng.h"
#include "base/util.h"
#include "../lib/seed.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>

#include <cmocka.h>

static uint64_t seed;

/* ---- */

static void bytes_of_all_sizes_and_alignments_come_and_go(void **state)
{
    const size_t room = 9u << 20, limit = DP_IO_MAX;
    uint8_t *model = calloc(1, 16u << 20);
    double exported = metric("penstock_data_bytes_exported_total"),
           in_place = metric("penstock_data_bytes_in_place_total");
    uint64_t moved = 0, end = 0, small = ino;
    struct given g;
    struct cap cap;
    struct rng r;

    (void)state;
    rng_seed(&r, seed);
    give(&alice, room, &g);
    assert_int_equal(raw_create(&alice, "big", &ino, &cap), 0);
    assert_int_equal(raw_bind(&conn, 0, &cap), 0);
    for (int i = 0; i < 120; i++) {
        uint32_t len = (uint32_t)(1 + rng_below(&r, i % 10 == 0 ? limit : i % 3 ? 300000 : 5000)), n;
        uint64_t at = rng_below(&r, room - len + 1), offset = rng_below(&r, (16u << 20) - len);
        struct dp_request q = io(DP_WRITE, offset, len, &g, at);
        if (i % 4 == 0) { /* in pieces, not in order in the memory */
            uint32_t half = len / 2;
            q.nsegs = half ? 2 : 1;
            q.seg[0].len = half ? half : len;
            q.seg[1] = (struct dp_seg){at, g.id, len - half};
            q.seg[0].addr = half ? at + (len - half) : at;
        }
        rng_fill(&r, g.mem, room);
        assert_int_equal(raw_call(&conn, &q), 0);
        assert_int_equal(conn.reply.result, len);
        for (uint32_t k = 0, pos = 0; k < q.nsegs; pos += q.seg[k++].len)
            memcpy(model + offset + pos, g.mem + q.seg[k].addr, q.seg[k].len);
        end = max_u64(end, offset + len);
        moved += len;
        memset(g.mem, 'g', room);
        q.opcode = DP_READ;
        q.length = len;
        assert_int_equal(raw_call(&conn, &q), 0);
        n = (uint32_t)conn.reply.result;
        assert_int_equal(n, len);
        for (uint32_t k = 0, pos = 0; k < q.nsegs; pos += q.seg[k++].len)
            assert_memory_equal(model + offset + pos, g.mem + q.seg[k].addr, q.seg[k].len);
        assert_true(all(g.mem, at, 'g') && all(g.mem + at + len, room - at - len, 'g'));
        moved += n;
    }
    /* A read over the end of the file is short, and touches nothing behind. */
    memset(g.mem, 'g', room);
    struct dp_request q = io(DP_READ, end - 1000, 70000, &g, 33);
    assert_int_equal(raw_call(&conn, &q), 0);
    assert_int_equal(conn.reply.result, 1000);
    assert_memory_equal(model + end - 1000, g.mem + 33, 1000);
    assert_true(all(g.mem + 1033, room - 1033, 'g'));
    assert_int_equal(metric("penstock_data_bytes_exported_total") - exported, moved + 1000);
    assert_int_equal(metric("penstock_data_bytes_in_place_total") - in_place, daemon_agent ? moved + 1000 : 0);
    assert_true(all(conn.mem, RAW_MEM, 'm'));
    take_back(&g, room);
    ino = small;
    free(model);
}

/* The request ends the connection, is counted so, and nothing has moved. */
static void assert_offence(struct dp_request q, const struct given *g, const char *reason)
{
    double before = refused(reason);

    assert_int_equal(raw_call(&conn, &q), -ENOTCONN);
    assert_int_equal(refused(reason) - before, 1);
    assert_true(all(g->mem, BYTES, 'g'));
    assert_nothing_moved();
    raw_disconnect(&conn);
    assert_int_equal(set_up(NULL), 0);
}

static void bytes_outside_of_the_export_are_refused(void **state)
{
    static const struct {
        uint64_t at;
        uint32_t len;
    } bad[] = {{BYTES, 1},        {BYTES - 1, 2},          {0, BYTES + 1},         {UINT64_MAX - 1, 1},
               {1ull << 63, 100}, {UINT64_MAX - 8000, 99}, {BYTES - 4096, 4097},   {1ull << 32, 4096}};
    struct given g;

    (void)state;
    give(&alice, BYTES, &g);
    for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
        assert_offence(io(DP_READ, 0, bad[i].len, &g, bad[i].at), &g, "export_range");
        assert_offence(io(DP_WRITE, 0, bad[i].len, &g, bad[i].at), &g, "export_range");
    }
    /* One good segment does not help a bad one. */
    struct dp_request q = io(DP_READ, 0, 5000, &g, 0);
    q.nsegs = 2;
    q.seg[0].len = 4000;
    q.seg[1] = (struct dp_seg){BYTES - 999, g.id, 1000};
    assert_offence(q, &g, "export_range");
    q.seg[1] = (struct dp_seg){0, g.id + 1, 1000};
    assert_offence(q, &g, "export_unknown");
    take_back(&g, BYTES);
}

static void numbers_of_others_and_none_are_refused(void **state)
{
    struct given mine, bobs;
    struct dp_request q;

    (void)state;
    give(&alice, BYTES, &mine);
    give(&bob, BYTES, &bobs);
    assert_offence(io(DP_READ, 0, 4096, &bobs, 0), &bobs, "export_unknown");
    assert_offence(io(DP_WRITE, 0, 4096, &bobs, 0), &bobs, "export_unknown");
    q = io(DP_READ, 0, 4096, &mine, 0);
    for (uint64_t id = 0; id < 3; id++) {
        q.seg[0].key = id ? UINT64_MAX - id : 0;
        assert_offence(q, &mine, "export_unknown");
    }
    take_back(&mine, BYTES);
    take_back(&bobs, BYTES);
    q.seg[0].key = mine.id; /* one that was */
    assert_int_equal(raw_call(&conn, &q), -ENOTCONN);
}

static void only_sealed_memory_of_the_right_size_is_taken(void **state)
{
    const int both = F_SEAL_SHRINK | F_SEAL_GROW;
    double before = refused("export_memory");
    int p[2], fds[16], n = 0, status, ignored = -1;
    char path[] = "/tmp/test-export-XXXXXX", ro[64];
    uint64_t id;

    (void)state;
    assert_int_equal(pipe(p), 0);
    fds[n++] = p[0];
    fds[n++] = p[1];
    fds[n] = mkstemp(path);
    unlink(path);
    assert_int_equal(ftruncate(fds[n++], BYTES), 0);
    fds[n++] = open("/dev/zero", O_RDWR);
    fds[n++] = open("/dev/shm", O_TMPFILE | O_RDWR, 0600); /* a file of the same file system, without seals */
    fds[n++] = socket(AF_UNIX, SOCK_STREAM, 0);
    fds[n++] = sealed(BYTES, 0, 0);
    fds[n++] = sealed(BYTES, F_SEAL_SHRINK, 0);
    fds[n++] = sealed(BYTES, F_SEAL_GROW, 0);
    fds[n++] = sealed(BYTES, both | F_SEAL_WRITE, 0);
    fds[n++] = sealed(BYTES - 4096, both, 0);
    fds[n++] = sealed(BYTES + 4096, both, 0);
    fds[n] = sealed(BYTES, both, 0); /* to be read only */
    snprintf(ro, sizeof ro, "/proc/self/fd/%d", fds[n]);
    fds[n + 1] = open(ro, O_RDONLY);
    n += 2;
    for (int i = 0; i < n; i++) {
        if (fds[i] < 0 || i == n - 2) /* no /dev/shm; the good one */
            continue;
        status = hand_over(&alice, fds[i], BYTES, &ignored, &id);
        if (status >= 0)
            fail_msg("descriptor %d was taken", i);
        before++;
    }
    assert_int_equal(refused("export_memory"), before);
    for (int i = 0; i < n; i++)
        close(fds[i]);
    /* Sizes that are none. */
    fds[0] = sealed(BYTES, both, 0);
    static const uint64_t sizes[] = {0, 1, 4095, BYTES - 1, BYTES + 1, 1ull << 62, UINT64_MAX, (1ull << 30) + 4096};
    for (size_t i = 0; i < ARRAY_SIZE(sizes); i++)
        assert_true(hand_over(&alice, fds[0], sizes[i], &ignored, &id) < 0);
    assert_int_equal(refused("export_memory"), before + ARRAY_SIZE(sizes));
    close(fds[0]);
    assert_int_equal(metric("penstock_exports"), 0);
}

static void there_are_bounds_on_bytes_and_pieces(void **state)
{
    struct given g[8], small[128], one;
    double before = refused("limit");
    uint64_t id;
    int n = 0, conn_fd, extra = sealed(4u << 20, F_SEAL_SHRINK | F_SEAL_GROW, 0);

    (void)state;
    /* A quarter of 64 MiB for one credential, whatever its sessions. */
    for (; n < 4; n++)
        give(n % 2 ? &alice : &bob, 4u << 20, &g[n]);
    assert_int_equal(hand_over(&alice, extra, 4u << 20, &conn_fd, &id), -ENOSPC);
    assert_int_equal(refused("limit") - before, 1);
    take_back(&g[0], 4u << 20);
    assert_int_equal(hand_over(&alice, extra, 4u << 20, &conn_fd, &id), 0);
    close(conn_fd);
    close(extra);
    for (int i = 1; i < n; i++)
        take_back(&g[i], 4u << 20);
    for (n = 0; n < 128; n++)
        give(&alice, 4096, &small[n]);
    one.memfd = sealed(4096, F_SEAL_SHRINK | F_SEAL_GROW, 0);
    assert_int_equal(hand_over(&alice, one.memfd, 4096, &conn_fd, &id), -ENOSPC);
    close(one.memfd);
    give(&bob, 4096, &one); /* of a session */
    take_back(&one, 4096);
    for (n = 0; n < 128; n++)
        take_back(&small[n], 4096);
}

static void who_does_not_know_the_sessions_key_gives_nothing(void **state)
{
    struct export_give g = {.bytes = put_le64(BYTES)};
    struct export_talk t, old;
    struct raw stranger = alice;
    double before = refused("export_proof"), sessions = refused("session");
    int fd, memfd = sealed(BYTES, F_SEAL_SHRINK | F_SEAL_GROW, 0), two[] = {memfd, memfd};
    uint64_t id;

    (void)state;
    /* A wrong key, and a proof for another size. */
    fd = dial();
    assert_true(greet(&alice, fd, &t));
    export_mac(bob.data_key, false, &t, BYTES, g.mac);
    send_fds(fd, &g, sizeof g, &memfd, 1);
    assert_int_equal(answer(fd, &id), -EACCES);
    close(fd);
    fd = dial();
    assert_true(greet(&alice, fd, &t));
    export_mac(alice.data_key, false, &t, BYTES + 4096, g.mac);
    send_fds(fd, &g, sizeof g, &memfd, 1);
    assert_int_equal(answer(fd, &id), -EACCES);
    close(fd);
    /* A proof of an earlier talk, said again. */
    fd = dial();
    assert_true(greet(&alice, fd, &old));
    export_mac(alice.data_key, false, &old, BYTES, g.mac);
    close(fd);
    fd = dial();
    assert_true(greet(&alice, fd, &t));
    send_fds(fd, &g, sizeof g, &memfd, 1);
    assert_int_equal(answer(fd, &id), -EACCES);
    close(fd);
    /* The daemon's own proof sent back. */
    fd = dial();
    assert_true(greet(&alice, fd, &t));
    export_mac(alice.data_key, true, &t, BYTES, g.mac);
    send_fds(fd, &g, sizeof g, &memfd, 1);
    assert_int_equal(answer(fd, &id), -EACCES);
    close(fd);
    assert_int_equal(refused("export_proof") - before, 4);
    /* No descriptor, two of them, a short message, a long one. */
    for (int i = 0; i < 4; i++) {
        char big[100] = {0};
        fd = dial();
        assert_true(greet(&alice, fd, &t));
        export_mac(alice.data_key, false, &t, BYTES, g.mac);
        memcpy(big, &g, sizeof g);
        send_fds(fd, big, i == 2 ? sizeof g - 1 : i == 3 ? sizeof big : sizeof g, two, i == 0 ? 0 : i == 1 ? 2 : 1);
        assert_true(answer(fd, &id) < 0);
        close(fd);
    }
    assert_int_equal(refused("export_proof") - before, 8);
    /* A session that is none. */
    rng_secret(stranger.session, sizeof stranger.session);
    fd = dial();
    assert_false(greet(&stranger, fd, &t));
    close(fd);
    assert_int_equal(refused("session") - sessions, 1);
    close(memfd);
    assert_int_equal(metric("penstock_exports"), 0);
}

static void garbage_is_answered_with_the_end(void **state)
{
    const le32 magic = put_le32(EXPORT_MAGIC);
    uint8_t buf[400];
    struct rng r;

    (void)state;
    rng_seed(&r, seed);
    for (int i = 0; i < 300; i++) {
        int fd = dial();
        rng_fill(&r, buf, sizeof buf);
        if (i % 3 == 0)
            memcpy(buf, &magic, sizeof magic);
        if (i % 6 == 0)
            memset(buf + 4, 0, 4);
        send(fd, buf, i % 3 == 0 ? sizeof(struct export_hello) : 1 + rng_below(&r, sizeof buf), MSG_NOSIGNAL);
        close(fd);
    }
    assert_int_equal(metric("penstock_exports"), 0);
}

static void many_that_say_nothing_leave_room_for_who_does(void **state)
{
    struct given g;
    int fd[64], dropped = 0;

    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(fd); i++)
        fd[i] = dial();
    for (size_t i = 0; i < ARRAY_SIZE(fd); i++)
        dropped += ended(fd[i], i < 32 ? 0 : 5000);
    assert_true(dropped >= 32); /* more than are let in at once */
    for (size_t i = 0; i < ARRAY_SIZE(fd); i++)
        close(fd[i]);
    for (int i = 0; i < 50; i++) { /* those who left are noticed */
        struct export_talk t;
        int one = dial();
        bool ok = greet(&alice, one, &t);
        close(one);
        if (ok)
            break;
        usleep(20000);
    }
    give(&alice, BYTES, &g);
    take_back(&g, BYTES);
}

static void an_export_ends_with_its_session_and_by_revocation(void **state)
{
    struct raw carol;
    struct given g;
    struct dp_request q;

    (void)state;
    assert_int_equal(raw_open(&carol, addr, token, "p", "c"), 0);
    give(&carol, BYTES, &g);
    assert_int_equal(raw_end_session(&carol), 0);
    assert_true(ended(g.conn, 10000));
    assert_int_equal(metric("penstock_exports"), 0);
    forget(&g, BYTES);
    raw_close(&carol);

    give(&alice, BYTES, &g);
    q = io(DP_READ, 0, 4096, &g, 0);
    assert_int_equal(raw_call(&conn, &q), 0);
    memset(g.mem, 'g', BYTES);
    assert_true(raw_revoke_session(&alice) > 0);
    assert_true(ended(g.conn, 10000));
    assert_int_equal(raw_grant(&alice, ino, CAP_READ | CAP_WRITE, 0, 0, 0, &whole, NULL), 0);
    assert_int_equal(raw_bind(&conn, 0, &whole), 0);
    assert_offence(q, &g, "export_unknown");
    forget(&g, BYTES);
}

/* The client may take pages out, or try to cut the memory: the daemon's accesses find pages all the same. */
static void holes_and_cuts_do_not_hurt_the_daemon(void **state)
{
    struct dp_request q;
    struct given g;

    (void)state;
    give(&alice, BYTES, &g);
    assert_int_equal(ftruncate(g.memfd, 0), -1);
    assert_int_equal(ftruncate(g.memfd, 2 * BYTES), -1);
    for (int i = 0; i < 20; i++) {
        assert_int_equal(fallocate(g.memfd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, BYTES), 0);
        q = io(i % 2 ? DP_READ : DP_WRITE, 0, FILE_BYTES, &g, 8192);
        assert_int_equal(raw_call(&conn, &q), 0);
        assert_int_equal(conn.reply.result, FILE_BYTES);
    }
    assert_true(all(g.mem, BYTES, 0));
    memset(g.mem, 'f', BYTES); /* as the file is at the start */
    q = io(DP_WRITE, 0, FILE_BYTES, &g, 0);
    assert_int_equal(raw_call(&conn, &q), 0);
    take_back(&g, BYTES);
}

/* Others write to the memory all the time: the file has what some moment had, and no checksum is wrong. */
static atomic_bool scribble_on;

static void *scribble(void *arg)
{
    uint64_t *p = arg, n = 0;

    while (atomic_load(&scribble_on))
        for (size_t i = 0; i < FILE_BYTES / sizeof *p; i++)
            ((volatile uint64_t *)p)[i] = ++n;
    return NULL;
}

static void memory_that_changes_meanwhile_never_damages_the_file(void **state)
{
    double errors = daemon_agent ? 0 : metric("penstock_store_data_errors_total");
    struct given g;
    pthread_t t;

    (void)state;
    give(&alice, BYTES, &g);
    atomic_store(&scribble_on, true);
    assert_int_equal(pthread_create(&t, NULL, scribble, g.mem), 0);
    for (int i = 0; i < 200; i++) {
        struct dp_request w = io(DP_WRITE, 0, FILE_BYTES, &g, 0), r = io(DP_READ, 0, FILE_BYTES, &g, 0);
        assert_int_equal(raw_call(&conn, &w), 0);
        assert_int_equal(raw_call(&conn, &r), 0);
        assert_int_equal(conn.reply.result, FILE_BYTES);
    }
    atomic_store(&scribble_on, false);
    pthread_join(t, NULL);
    if (!daemon_agent) /* its server would have answered EIO */
        assert_int_equal(metric("penstock_store_data_errors_total") - errors, 0);
    take_back(&g, BYTES);
}

/* Whoever has the session's key hands over, whatever user it is; a user that has not is refused. */
static void two_users_share_the_socket_and_nothing_else(void **state)
{
    struct raw liar = alice;
    char folder[100];

    (void)state;
    if (geteuid() != 0)
        skip(); /* cannot be another user */
    snprintf(folder, sizeof folder, "%s", export_path);
    *strrchr(folder, '/') = 0;
    assert_int_equal(chmod(folder, 0711), 0);
    rng_secret(liar.data_key, sizeof liar.data_key);
    for (int i = 0; i < 2; i++) {
        int status;
        pid_t pid = fork();
        if (pid == 0) {
            struct export_give g = {.bytes = put_le64(BYTES)};
            struct export_talk t = {.session = {0}};
            struct export_hello h = {.magic = put_le32(EXPORT_MAGIC)};
            struct export_answer a;
            struct sockaddr_un sa = {.sun_family = AF_UNIX};
            const struct raw *who = i ? &liar : &alice;
            uint64_t id;
            int fd, memfd = sealed(BYTES, F_SEAL_SHRINK | F_SEAL_GROW, 0), r;
            if (setgid(65534) < 0 || setuid(65534) < 0)
                _exit(100);
            fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
            memcpy(sa.sun_path, export_path, strlen(export_path) + 1);
            if (connect(fd, (struct sockaddr *)&sa, sizeof sa) < 0)
                _exit(101);
            memcpy(h.session, who->session, sizeof h.session);
            memcpy(t.session, who->session, sizeof t.session);
            if (send(fd, &h, sizeof h, 0) != sizeof h || recv(fd, &a, sizeof a, 0) != sizeof a)
                _exit(102);
            memcpy(t.daemon_nonce, a.nonce, sizeof t.daemon_nonce);
            export_mac(who->data_key, false, &t, BYTES, g.mac);
            send_fds(fd, &g, sizeof g, &memfd, 1);
            r = answer(fd, &id);
            _exit(r == 0 ? 0 : r == -EACCES ? 1 : 103);
        }
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_true(WIFEXITED(status));
        assert_int_equal(WEXITSTATUS(status), i);
    }
    assert_int_equal(chmod(folder, 0700), 0);
    for (int i = 0; metric("penstock_exports") > 0 && i < 500; i++)
        usleep(10000); /* the child is gone */
    assert_int_equal(metric("penstock_exports"), 0);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
#define T(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
        T(bytes_of_all_sizes_and_alignments_come_and_go),
        T(bytes_outside_of_the_export_are_refused),
        T(numbers_of_others_and_none_are_refused),
        T(only_sealed_memory_of_the_right_size_is_taken),
        T(there_are_bounds_on_bytes_and_pieces),
        T(who_does_not_know_the_sessions_key_gives_nothing),
        T(garbage_is_answered_with_the_end),
        T(many_that_say_nothing_leave_room_for_who_does),
        T(holes_and_cuts_do_not_hurt_the_daemon),
        T(memory_that_changes_meanwhile_never_damages_the_file),
        T(two_users_share_the_socket_and_nothing_else),
        T(an_export_ends_with_its_session_and_by_revocation),
#undef T
    };

    seed = seed_new();
    daemon_export = true;
    daemon_agent = argc > 1 && !strcmp(argv[1], "agent");
    return cmocka_run_group_tests(tests, start_daemon, stop_daemon);
}
